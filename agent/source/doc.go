// Package source is where wishes come from. Today that is manifest files: a
// folder, or one file, with Pods and the ConfigMaps and Secrets that they name.
//
// It owns the watch on the folder and the last good version of every file. It
// turns files into Snapshots: all that one source wants now, defaulted,
// validated and with an identity. It never starts or ends anything: who takes
// the Snapshots compares them.
//
// How a file is believed:
//
//	          close-write, renamed here           read and
//	unseen ─────────────────────────────► due ──► judged ──► good: replaces the last good version
//	   │                                   ▲         │
//	   │ created, found by a scan:         │         └─────► bad: asked again after a grace, then
//	   └─ when quiet for 20 ms ────────────┘                 named; the last good version stays
//	   gone, emptied: believed after 100 ms (an editor may be saving by rename)
//
// Invariants, each held by a test:
//
//	S1 A bad file, or a bad document in a file, changes nothing of what the file
//	   wanted before.
//	S2 A file that is being written is not read before it is closed (or its
//	   writer has been silent for half a second).
//	S3 The same content gives the same UID on every start; a change of image or
//	   of an amount keeps it, every other change makes a new one.
//	S4 A Snapshot is immutable, and what has not changed keeps its pointers.
//	S5 No error, warning or log line has the content of a Secret.
//	S6 What cannot be a manifest (hidden, backup and temporary files, other
//	   suffixes, directories, devices) is not read; the log tells of other suffixes.
//	S7 A file takes nothing from another that has it.
//
// Goroutines: Folder.Run, which owns all state, and one reader of the inotify
// descriptor that Run starts and waits for.
package source
