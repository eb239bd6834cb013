// Package crilog reads, follows, rotates and removes container logs in the CRI format:
//
//	2026-01-02T15:04:05.000000000Z stdout F text of the line
//
// With P instead of F, the line continues in the next record of the same stream. The package owns
// the layout of the log directories and the names of rotated files.
//
// It never writes to a log: the runtime does. Its only request to the runtime is to reopen a file,
// and it polls only the sizes of files that grow.
//
//	rotate.go     one rotation: rename, reopen, compress, delete
//	watermark.go  when to check which log
//	inotify.go    kernel notifications that a log grows
//
// Goroutines: Rotator.RunOnce starts its workers and waits for them. Rotator.Run and Collector.Run
// run on the caller's goroutine. None outlives its call. InotifyWatcher has one goroutine that
// reads from the kernel, and Close waits for it.
//
// Invariants, each checked by a test that mentions its number:
//
//	L1 Memory usage does not grow with the file, the line or the number of lines.
//	L2 A malformed record is skipped without losing the records around it.
//	L3 A follower reads each line once and in order while files are rotated,
//	   truncated or compressed, as long as the file that it reads and the newer ones
//	   are not deleted before it gets to them.
//	L4 A follower ends when the container has exited and its whole log is read.
//	   If requested, it continues with the container's next run.
//	L5 Rotate loses no line, even if the runtime does not reopen its file.
//	L6 The collector removes only what is in a directory of the expected layout, has not
//	   changed for a while and has no owner. The newest log of a container and those of
//	   its existing instances are kept.
package crilog
