// Package content says which files a configMap, secret, downwardAPI or
// projected volume consists of. It is pure: objects and pod in, files out.
// It never touches the host; package volumes writes what it answers.
//
// Invariants:
//
//	C1 Every path in Files is relative, clean, and stays inside the volume; no
//	   top-level name begins with "..", the writer's own name space.
//	C2 No path of Files is both a file and a directory.
//	C3 Errors name objects and keys, never values.
package content
