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

// What a runtime runs in a container is a session of its own: its first process
// is a child of the container's supervisor, as the container's own is, and leads
// a session that all it starts belongs to. What leaves that is in family.go.

// process is what /proc says of one.
type process struct {
	pid, parent, session int
	started              time.Duration // since boot
}

func readProcess(pid int) (process, bool) {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return process{}, false
	}
	// The name is in parentheses and may hold anything, also parentheses.
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	f := strings.Fields(string(rest))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" { // a dead one counts as gone
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

// sinceBoot is the clock of /proc.
func sinceBoot(t time.Time) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano()) - time.Since(t)
}

// commandsOf returns the sessions of commands that were begun in a container
// between those times. Where one was begun with exactly these words, others are
// left out, and so is what may be a user's.
func commandsOf(init int, command []string, from, until time.Duration, users grants) (sessions []int) {
	var same []int
	for _, p := range leadersOf(init) {
		if p.started < from-2*tick || p.started > until || users.may(p, command) {
			continue
		}
		sessions = append(sessions, p.pid)
		if hasWords(p.pid, command) {
			same = append(same, p.pid)
		}
	}
	if len(same) > 0 {
		return same
	}
	return sessions
}

// leadersOf lists the first processes of all sessions that the runtime has begun
// in a container, but for its own.
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

// hasWords reports whether a process still runs what it was begun with.
func hasWords(pid int, command []string) bool {
	words := append([]byte(strings.Join(command, "\x00")), 0)
	line, err := os.ReadFile(procPath(pid, "cmdline"))
	return err == nil && bytes.Equal(line, words)
}

// straysOf returns the sessions of processes that a command has left which was
// gone before anybody saw it: they began after it was asked for, their session
// has lost its first process, and they hold outputs that are not the
// container's own. The runtime waits for just those outputs.
func straysOf(init int, from time.Duration) (sessions []int) {
	group := cgroupOf(init)
	for _, p := range processes() {
		if p.started < from-2*tick || p.pid == init || cgroupOf(p.pid) != group || slices.Contains(sessions, p.session) {
			continue
		}
		if _, lives := readProcess(p.session); !lives && holdsOther(init, p.pid) {
			sessions = append(sessions, p.session)
		}
	}
	return sessions
}

// soonAfter is how soon after it was asked for a command is most often begun.
const soonAfter = 2 * time.Second

// left is a session that a command may have left, with when it began.
type left struct {
	session int
	began   time.Duration
}

// cutOffIn finds what a command that was cut off may have left in a container:
// the command itself, whether or not it has become another program since, and
// what has outlived it. What may be a user's is none of it.
func cutOffIn(init int, n note, users grants) (all []left) {
	for _, p := range leadersOf(init) {
		late := p.started > n.Began+soonAfter
		if p.started >= n.Began-2*tick && !users.may(p, n.Command) && (hasWords(p.pid, n.Command) || !late && holdsOther(init, p.pid)) {
			all = append(all, left{p.pid, p.started})
		}
	}
	for _, s := range straysOf(init, n.Began) {
		for _, p := range processes() {
			if p.session == s {
				all = append(all, left{s, p.started})
				break
			}
		}
	}
	return all
}

// holdsOther reports whether one of a process' outputs is a pipe that the
// container's first process does not have.
func holdsOther(init, pid int) bool { return len(outputsOf(init, pid)) > 0 }

// killSessions kills what is left of sessions in the container that init is the
// first process of, and returns how many it was. A session whose first process
// lives is killed with it only if that began by then.
func killSessions(init int, sessions []int, from, leaders time.Duration) (n int) {
	group := cgroupOf(init)
	if group == "" {
		return 0 // the container is gone, and everything with it
	}
	for _, s := range sessions {
		if p, lives := readProcess(s); lives && p.started > leaders {
			continue // it has not been killed yet, or is another of this number
		}
		for _, p := range processes() {
			if p.session == s && p.pid != init && p.started >= from-2*tick && cgroupOf(p.pid) == group && kill(p) {
				n++
			}
		}
	}
	return n
}

// kill kills exactly this process, not one that has got its number since.
func kill(p process) bool {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }() // only a handle
	now, lives := readProcess(p.pid)
	return lives && now.session == p.session && now.started == p.started &&
		unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// childrenOf lists the children of a process, whichever of its threads has them.
func childrenOf(parent int) (all []process) {
	files, err := filepath.Glob(procPath(parent, "task/*/children"))
	if err != nil || len(files) == 0 { // a kernel without these lists
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

// cgroupOf tells containers apart; empty: the process is gone.
func cgroupOf(pid int) string {
	data, err := os.ReadFile(procPath(pid, "cgroup"))
	if err != nil {
		return ""
	}
	return string(data)
}
