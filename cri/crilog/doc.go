// Package crilog reads, follows and rotates container logs in the format of the
// container runtime interface:
//
//	2026-01-02T15:04:05.000000000Z stdout F text of the line
//
// where P instead of F says that the line goes on in the next record of the same
// stream. It owns the layout of the log folders and the names of rotated files.
//
// It never writes into a log: the runtime does. It asks the runtime for nothing
// but to open a file again, and polls nothing but the sizes of files that grow.
//
//	rotate.go     one rotation: move, open, compress, delete
//	watermark.go  when to look at which log
//	growth.go     the kernel's word that a log grows
//	thin.go       what is more than one minute may have
//
// Goroutines: Rotator.Round has its workers and waits for them; Rotator.Run and
// Collector.Run are their caller's. None outlives the call. Growth has one that
// reads from the kernel; Close waits for it.
//
// Invariants, each checked by a test that bears its number:
//
//	L1 Memory does not grow with the file, the line or the number of lines.
//	L2 A record that makes no sense is left out; what is around it is not.
//	L3 A follower gets each line once and in order, whatever is rotated,
//	   truncated or compressed while it reads, as long as the file that it reads
//	   and those after it are not deleted before it comes to them.
//	L4 A follower ends when the container has ended and all that it wrote is read;
//	   asked to, it goes on with the container's next run.
//	L5 Rotate loses no line, also when the runtime does not open its file again.
//	L6 The collector takes away only what lies in a folder of the layout's form,
//	   has not changed for a while and is nobody's; the newest log of a container
//	   and those of its instances that are still there stay.
//	L7 A limit drops whole lines from rotated files that nobody writes any more,
//	   of each minute the oldest first, and one line in their place says how many.
package crilog
