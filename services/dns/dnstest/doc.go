// Package dnstest compares the DNS server with CoreDNS. It has the objects and the questions of the
// comparison, an upstream server for both, and the differences that are on purpose.
//
// The answers of CoreDNS are recorded in a file, with which the tests of services/dns compare. A command
// of the test module records them and compares two running servers.
package dnstest
