// Package storage is where the control server keeps its objects: an etcd member
// inside the process by default, reached over a unix socket that only the
// server's own user can open, or the etcd cluster that the user names.
//
// It owns DIR/etcd, the member's life, the room that it has and takes, its
// defragmentation and the one client that all stores share. It never knows what is
// stored.
//
// Goroutines: those of the member, ended by Member.Close, and Member.keep,
// which looks after the room and is waited for there too.
package storage
