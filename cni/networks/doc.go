// Package networks attaches pods to networks beside the one that the runtime gives
// them: those that the annotation k8s.v1.cni.cncf.io/networks names. It runs the
// plugins itself, with libcni, in the sandbox's network namespace.
//
// It owns a directory of the agent's state: one file per sandbox that has such
// networks, ID.json, and in results what libcni remembers. The configurations are
// files of whoever runs the node; a copy of each that was used is in the sandbox's
// file, for taking the attachment away again.
//
// It has no goroutine of its own but a few in Check, which waits for them.
// Everything may be called at the same time, but for one sandbox one thing after
// the other, Check apart.
//
// Invariants:
//
//	S1 Before a plugin is told to ADD, the file that says how to DEL is on disk. It
//	   goes when every DEL has succeeded.
//	S2 A sandbox without a file that says Done does not have all of its networks.
//	S3 No file in the directory makes New fail.
package networks
