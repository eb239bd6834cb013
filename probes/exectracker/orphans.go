package exectracker

import (
	"slices"
	"sync"
	"time"
)

// An orphaned session is what a command has left that ended before it was observed: its leader is
// gone, so only a pipe shows to which command it belongs.

// container is the state of a container's processes at one time.
type container struct {
	init    process
	members []process // all processes, with init
	leaders []int     // the living leaders of the sessions that the runtime has started, without init

	// outputs returns the pipes that a process has as its outputs and that the container's shim reads,
	// without those of init.
	outputs func(pid int) []string
	// unread returns the pipes that a process has as its two outputs, if no process reads them: the shim
	// closes its ends when the runtime deletes an interrupted command.
	unread func(pid int) []string
	// pipes returns all pipes that a process has open.
	pipes func(pid int) []string
	// hasCommandLine reports whether a process has a command line.
	hasCommandLine func(pid int, command []string) bool
}

// orphanedSessions returns the sessions left by a command that ended before it was observed.
func orphanedSessions(init int, n record, users userExecs) []int {
	first, lives := readProcess(init)
	if !lives {
		return nil
	}
	c := container{
		init: first, outputs: func(pid int) []string { return outputsOf(init, pid) }, pipes: openPipes,
		hasCommandLine: hasCommandLine,
	}
	c.members = membersOf(first)
	readers := sync.OnceValue(func() []string { return readPipes(first, c.members) })
	c.unread = func(pid int) []string { return unreadOutputs(init, pid, readers) }
	for _, p := range leadersOf(init) {
		c.leaders = append(c.leaders, p.pid)
	}
	return orphans(c, n, users)
}

// orphans decides which sessions a command has left. It is a pure function of its arguments. One of
// the processes of such a session started after the request, cannot be that of a user exec, and has
// an output pipe that was created since the request: no older process has it, and no running command.
// The shim reads this pipe, or both outputs of the process are pipes without a reader.
func orphans(c container, n record, users userExecs) (sessions []int) {
	from := n.RequestedAt - 2*tick
	var candidates []process
	for _, p := range c.members {
		same := func() bool { return c.hasCommandLine(p.pid, n.Command) }
		switch {
		case p.started < from || p.pid == c.init.pid || users.match(p.started, n.Command, same):
		case slices.ContainsFunc(c.members, func(m process) bool { return m.pid == p.session }):
		case len(c.outputs(p.pid)) > 0 || len(c.unread(p.pid)) > 0:
			candidates = append(candidates, p)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	others := c.otherPipes(from)
	for _, p := range candidates {
		isOwn := func(pipe string) bool { return !slices.Contains(others, pipe) }
		unread := c.unread(p.pid)
		abandoned := len(unread) > 0 && isOwn(unread[0]) && isOwn(unread[1])
		if (abandoned || slices.ContainsFunc(c.outputs(p.pid), isOwn)) && !slices.Contains(sessions, p.session) {
			sessions = append(sessions, p.session)
		}
	}
	return sessions
}

// otherPipes returns the pipes that were not created for a command that was requested at the given
// time and has ended: an older process or a running command has them.
func (c *container) otherPipes(from time.Duration) (pipes []string) {
	for _, p := range c.members {
		if p.pid == c.init.pid || p.started < from {
			pipes = append(pipes, c.pipes(p.pid)...)
		}
	}
	for _, pid := range c.leaders {
		pipes = append(pipes, c.outputs(pid)...)
	}
	return pipes
}
