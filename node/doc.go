// Package node knows what the host is: its addresses, what it has to offer and
// what of that pods may use. It reads files and system calls; it never decides
// anything about a pod and changes nothing.
package node
