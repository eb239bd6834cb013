// Package dnsdifferential asks the DNS server of the agent and CoreDNS the same questions about the same
// Services, and compares the answers. Both know the Services from berth-control. What CoreDNS answers can
// be recorded for the tests of services/dns.
package dnsdifferential
