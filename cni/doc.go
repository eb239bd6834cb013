// Package cni manages the node's CNI configuration. It finds the configuration that the container
// runtime uses, validates it and its plugins, watches both for changes, and can write a default
// configuration for a node that has none.
//
// The container runtime runs the plugins of the default network. This package runs them only to
// query their versions, and in Release to delete attachments that the runtime no longer knows. The
// effective configuration is the file that the runtime picks: the first by name of the *.conf,
// *.conflist and *.json files. If that file is invalid, the next one is not used, because the
// runtime does not use it either.
//
// Leaks finds network resources of containers that the runtime did not clean up, and Release
// deletes them. The caller decides whether a container still exists.
//
// The packages routes and gateway below provide connectivity to the pods of other nodes.
//
// The package owns one file, 10-berth.conflist, and only if it contains the key "berth".
// WriteDefault writes nothing to a directory in which another file sorts first.
//
// Run starts no goroutine and returns when its context ends. While it runs, Ready returns the
// result of its last check. DialLocal enters a pod's network namespace on a goroutine with its own
// OS thread and waits for it.
//
// Invariants:
//
//	N1 A reader of the configuration sees either the old file or the new one.
//	N2 Files that berth did not write are neither changed nor removed.
//	N3 Whatever the directory contains, a call fails only with an error that
//	   names the invalid file and the reason.
//	N4 Release deletes nothing of another container. It reads an address file
//	   again before it removes it, and matches rules by their comment.
package cni
