// Package content returns the files of a configMap, secret, downwardAPI or projected volume. It is
// pure: it maps objects and a pod to files and never accesses the host. Package volumes writes the
// files.
//
// Invariants:
//
//	C1 Every path in Files is relative, clean, and inside the volume. No top-level
//	   name starts with "..", which is reserved for the writer.
//	C2 No path of Files is both a file and a directory.
//	C3 Errors contain the names of objects and keys, never values.
package content
