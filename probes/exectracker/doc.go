// Package exectracker runs commands in containers for the agent's own ends, probes
// and hooks, and sees to it that they leave no process behind.
//
// A runtime kills the command that is not over in time, not what it has started;
// and one whose asker or whose runtime dies meanwhile may be killed by nobody.
// So the package looks at the host's processes: for what a late command has
// started, and for what a command that was cut off has left, also by an agent
// that was killed. For that it owns a directory of notes, one file per command
// under way; it lies in the page cache only, as the processes do that it tells
// of.
//
// It decides nothing about when a command is run or what its end means, and
// touches no process that it cannot tell for a command's own: one of the same
// container, begun after the command was asked for, in the command's session,
// seen to descend from it, or with an end of its outputs. A command that ends by
// itself may leave what it wants. So does a daemon of one that did not, if it
// lost its parent before it was seen and holds none of the outputs: nothing
// tells it from the container's own.
//
//	commands.go   ExecSync: one command
//	overtime.go   what a command that is not over in time has started
//	cutoff.go     what a command that nobody waits for any more has left
//	grants.go     commands of users in the same containers
//	notes.go      which commands were under way, over the agent's death
//	processes.go  the host's processes
//	family.go     what has left a command's session
//
// # Goroutines
//
//	Runner.Run   owns the clearing up after commands that were cut off; ends with
//	             its context: what is left is the next life's
//	a watcher    one per command under way; waited for by it
//
// # Invariants
//
//	M1 A command that was not over in time leaves no process behind that can be
//	   told for its own.
//	M2 Nor does one that was cut off: called off, or by the death of the agent
//	   or of the runtime.
//	M3 A command of this life is never taken for one of an earlier life, nor
//	   one that a user has asked for.
package exectracker
