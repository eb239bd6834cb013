package exectracker

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Every command that a runtime runs in a container has its own session. Its first process is a
// child of the container's shim, like the container's init process, and leads the session of all
// its descendants. For processes that leave it, see processtree.go.

// process is the data of a process from /proc.
type process struct {
	pid, parent, session int
	started              time.Duration // since boot
}

func readProcess(pid int) (process, bool) {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return process{}, false
	}
	// The name is in parentheses and may itself contain parentheses.
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	f := strings.Fields(string(rest))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" { // a zombie counts as ended
		return process{}, false
	}
	p := process{pid: pid}
	p.parent, _ = strconv.Atoi(f[1])
	p.session, _ = strconv.Atoi(f[3])
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	p.started = time.Duration(ticks) * (time.Second / clockTicks)
	return p, err == nil
}

const (
	clockTicks = 100 // per second, in /proc, on every Linux
	startSlack = 5 * time.Second
	tick       = time.Second / clockTicks
)

func procPath(pid int, file string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), file)
}

// sinceBoot converts a time to the clock of /proc.
func sinceBoot(t time.Time) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Since(t)
}

// commandsOf returns the sessions of commands that started in a container within the given times.
// If a session has exactly this command line, only such sessions are returned. Possible user execs
// are excluded.
func commandsOf(init int, command []string, from, until time.Duration, users userExecs) (sessions []int) {
	var same []int
	for _, p := range leadersOf(init) {
		if p.started < from-2*tick || p.started > until || users.mayMatch(p, command) {
			continue
		}
		sessions = append(sessions, p.pid)
		if hasCommandLine(p.pid, command) {
			same = append(same, p.pid)
		}
	}
	if len(same) > 0 {
		return same
	}
	return sessions
}

// leadersOf returns the leaders of all sessions that the runtime has started in a container,
// without its init process.
func leadersOf(init int) (all []process) {
	first, ok := readProcess(init)
	if !ok {
		return nil
	}
	group := cgroupOf(init)
	return slices.DeleteFunc(childrenOf(first.parent), func(p process) bool {
		return p.pid == init || p.session != p.pid || cgroupOf(p.pid) != group
	})
}

// hasCommandLine reports whether a process still has the command line it was started with.
func hasCommandLine(pid int, command []string) bool {
	words := append([]byte(strings.Join(command, "\x00")), 0)
	line, err := os.ReadFile(procPath(pid, "cmdline"))
	return err == nil && bytes.Equal(line, words)
}

// startWindow is how soon after its request a command usually starts.
const startWindow = 2 * time.Second

// interruptedSession is a session that a command may have left.
type interruptedSession struct {
	session int
	started time.Duration
}

// interruptedSessions finds the sessions that an interrupted command may have left in a container:
// the command itself, even if it has executed another program, and orphaned sessions. Of several
// commands that have executed another program, none is returned, because only one can be it.
// Possible user execs are excluded.
func interruptedSessions(init int, n record, users userExecs) (all []interruptedSession) {
	var changed []interruptedSession // with another command line
	for _, p := range leadersOf(init) {
		late := p.started > n.RequestedAt+startWindow
		switch {
		case p.started < n.RequestedAt-2*tick || users.mayMatch(p, n.Command):
		case hasCommandLine(p.pid, n.Command):
			all = append(all, interruptedSession{p.pid, p.started})
		case !late && len(outputsOf(init, p.pid)) > 0:
			changed = append(changed, interruptedSession{p.pid, p.started})
		}
	}
	if len(all) == 0 && len(changed) == 1 {
		all = changed
	}
	for _, s := range orphanedSessions(init, n, users) {
		for _, p := range processes() {
			if p.session == s {
				all = append(all, interruptedSession{s, p.started})
				break
			}
		}
	}
	return all
}

// killSessions kills the remaining processes of sessions in the container with the given init
// process, and returns their number. A session whose leader is alive is killed only if the leader
// started by the given time.
func killSessions(init int, sessions []int, from, leaders time.Duration) (n int) {
	group := cgroupOf(init)
	if group == "" {
		return 0 // the container is gone with all its processes
	}
	for _, s := range sessions {
		if p, lives := readProcess(s); lives && p.started > leaders {
			continue // not killed yet, or a reused PID
		}
		for _, p := range processes() {
			if p.session == s && p.pid != init && p.started >= from-2*tick && cgroupOf(p.pid) == group && kill(p) {
				n++
			}
		}
	}
	return n
}

// kill kills exactly this process, not a later one with the same PID.
func kill(p process) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // the descriptor was only used for the signal
	now, lives := readProcess(p.pid)
	return lives && now.session == p.session && now.started == p.started &&
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// childrenOf returns the children of all threads of a process.
func childrenOf(parent int) (all []process) {
	files, err := filepath.Glob(procPath(parent, "task/*/children"))
	if err != nil || len(files) == 0 { // the kernel does not provide the file
		return slices.DeleteFunc(processes(), func(p process) bool { return p.parent != parent })
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has just ended
		}
		for word := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(word); err == nil {
				if p, ok := readProcess(pid); ok {
					all = append(all, p)
				}
			}
		}
	}
	return all
}

// membersOf returns the processes in the container of an init process, with init.
func membersOf(init process) (members []process) {
	group := cgroupOf(init.pid)
	for _, p := range processes() {
		if p.pid != init.parent && cgroupOf(p.pid) == group {
			members = append(members, p)
		}
	}
	return members
}

func processes() (all []process) {
	list, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range list {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
	}
	return all
}

// cgroupOf identifies the container of a process. Empty: the process is gone.
func cgroupOf(pid int) string {
	data, err := os.ReadFile(procPath(pid, "cgroup"))
	if err != nil {
		return ""
	}
	return string(data)
}
