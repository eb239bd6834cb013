// Package exectracker runs the commands of probes and hooks in containers and cleans up the
// processes that they leave behind.
//
// When a command times out, the runtime kills the command itself but not its child processes. If
// the caller or the runtime dies meanwhile, the command may not be killed at all. The package
// therefore inspects the host's processes: for children of a command that timed out, and for what
// an interrupted command has left, also after the agent was killed. For this it owns a directory
// with one record per running command. The records are only in the page cache: like the processes,
// they do not have to survive a crash of the host.
//
// It makes no decisions about when a command runs or what its result means. It kills only processes
// that it can attribute to a command: processes in the same container that started after the
// command was requested and that are in the command's session, were observed as its descendants, or
// hold one of its output pipes. An output pipe of a command is one that the container's shim reads
// and that no older process of the container has. A pipe between processes of the container is not.
//
// A process that cannot be attributed keeps running, because it may be one of the container's own:
// a process that a command leaves when it ends by itself; a process that lost its parent before it
// was observed and holds none of the pipes, or beside another command in the same container; and one
// that may be a user exec, within a minute of the user's request.
//
//	tracker.go      ExecSync: one command
//	timeout.go      processes of a command that timed out
//	interrupted.go  processes of an interrupted command
//	userexec.go     user execs in the same containers
//	records.go      the records of running commands
//	orphans.go      what a command has left that ended before it was observed (pure)
//	processes.go    the host's processes
//	processtree.go  processes that have left a command's session
//
// # Goroutines
//
//	Tracker.Run   cleans up after interrupted commands; ends with its context:
//	              the next run of the agent handles the rest
//	execWatcher   one per running command, which waits for it
//
// # Invariants
//
//	M1 A command that timed out leaves no process that can be attributed to it.
//	M2 Neither does an interrupted command: canceled, or by the death of the agent
//	   or the runtime.
//	M3 A current command is never mistaken for one of an earlier run of the agent,
//	   nor is a user exec or a process of the container's own program for one
//	   that a command has left.
package exectracker
