// Package node knows what the host is: its addresses, what it has to offer and
// what of that pods may use, and what its kernel
// can do; and it reads the signals by which package pressure judges. It reads files and system calls; it never decides
// anything about a pod and changes nothing.
package node
