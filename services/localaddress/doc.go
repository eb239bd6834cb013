// Package localaddress keeps the addresses of the node's own services, such as its DNS server, on the
// loopback interface of the network namespace. Pods reach them through their default gateway, which is
// the host.
//
// It owns the addresses that a file in the agent's state directory lists, and nothing else: an
// address that was there before is used and never removed. The file is written before an address is
// added, and deleted after the last one is removed, so that a crash in between leaves nothing behind.
package localaddress
