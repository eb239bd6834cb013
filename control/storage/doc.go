// Package storage runs or connects to etcd, where the control server stores its objects: by default
// an embedded member, reached over a unix socket that only the server's user can open, or an
// external cluster.
//
// It owns DIR/etcd, the lifecycle of the member, its disk space and quota, its defragmentation, and
// the client that all stores share. It does not interpret the stored data.
//
// Goroutines: those of the member, and Member.maintain. Member.Close stops them and waits.
package storage
