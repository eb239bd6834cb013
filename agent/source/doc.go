// Package source provides the desired pods of manifest files: of a directory or of one file with
// Pods, workloads, Services, ConfigMaps and Secrets. Package agent/source/apiserver provides those
// of an API server.
//
// The package owns the watch on the directory and the last good version of every file. It turns
// files into Snapshots: everything that one source desires now, with defaults, validated and with
// an identity. It does not start or stop anything. The consumer compares Snapshots.
//
// States of a file:
//
//	          close-write, renamed here           read and
//	unseen ─────────────────────────────► due ──► validated ──► good: replaces the last good version
//	   │                                   ▲         │
//	   │ created, found by a scan:         │         └─────────► bad: read again after a delay, then
//	   └─ when unchanged for 20 ms ────────┘                     reported; the last good version stays
//	   deleted, emptied: takes effect after 100 ms (an editor may be saving by rename)
//
// # Invariants
//
// Each invariant is covered by a test.
//
//	S1 An invalid file, or an invalid document in a file, does not change the
//	   desired state of the file.
//	S2 A file is not read while it is open for writing, unless its writer has not
//	   written for half a second.
//	S3 The same content results in the same UID on every start. A change of an
//	   image or of an amount of CPU or memory keeps it, every other change results
//	   in a new UID.
//	S4 A Snapshot is immutable. Unchanged objects keep their pointers.
//	S5 Errors, warnings and log lines do not contain content of a Secret.
//	S6 Files that cannot be manifests are not read: hidden, backup and temporary
//	   files, other suffixes, directories, devices. Other suffixes are logged.
//	S7 Of several files with the same object, the first one keeps it.
//
// Goroutines: Directory.Run, which owns all state, and one reader of the inotify descriptor that
// Run starts and waits for.
package source
