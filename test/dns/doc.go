// Package dns contains only tests. They run the DNS server of the agent as a service of systemd on a host of
// test/nspawn: systemd holds the sockets of the server while it restarts or crashes.
//
// The test program is the service and the client too. TestMain decides by an environment variable.
package dns
