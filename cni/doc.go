// Package cni keeps what surrounds the node's pod network: which configuration
// counts, whether it is right, whether its plugins are there, and when any of
// that changes. It can write a configuration for a node that has none.
//
// The plugins of the default network are run by the runtime, not by this
// package: here they are only asked for their versions, and by Release to take
// away what the runtime has forgotten. So the file that counts
// is the one the runtime takes: of those named *.conf, *.conflist and *.json
// the first by name. If that one is bad the next is not looked at, because the
// runtime does not do so either.
//
// Leaks finds what the network of a container has left that the runtime was cut
// off from taking away, and Release takes it away; whether a container is still
// somebody's is for the caller to say.
//
// How pods reach those of other hosts is for routes and gateway below.
//
// It owns one file, 10-berth.conflist, and of that only one with the key
// "berth" in it. WriteDefault leaves a directory alone where a file that sorts
// before it counts: somebody installed a network on purpose.
//
// Run has no goroutine of its own and returns when its context ends. While it
// runs, Ready answers from what it saw last. DialLocal goes into a pod's network
// on a goroutine with a thread of its own, and waits for it.
//
// Invariants:
//
//	N1 A reader of the configuration sees the old file or the new one.
//	N2 No file that berth did not write is changed or removed.
//	N3 No content of the directory makes a call fail in any other way than by
//	   saying which file is wrong and why.
//	N4 Release takes nothing of another container: an address file is read again
//	   before it is removed, a rule is that container's by its comment.
package cni
