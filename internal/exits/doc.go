// Package exits has the kernel tell how containers ended whose end the runtime
// has lost: containerd 2.x that was away when a container ended reports 255 and
// Unknown, see docs/adr/0011-exit-codes-that-the-runtime-has-lost.md.
//
// It owns one pidfd for each container that runs: a handle of its first process
// that was opened while that lived, and that answers with its exit code after
// whoever has reaped it (since Linux 6.15). On an older kernel it holds nothing
// and knows nothing.
//
// It makes no code up, asks the runtime nothing but for processes, and decides
// nothing.
//
//	running ──Hold──► asked for ──pidfd──► held ──exits──► ended, when ──reaped──► how
//	                      └─ nobody knows it: dropped          └── Retain without it: dropped
//
// # Goroutines
//
//	Exits.Run   opens handles; ends with its context, and closes them all
//	a listener  waits for the ends of what is held; ends with Run, which waits for it
package exits
