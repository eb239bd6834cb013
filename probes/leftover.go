package probes

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
// a session that all it starts belongs to (unless it leaves it, as daemons do).

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

// commandsOf returns the sessions of commands that were begun in a container at
// about that time. Where one was begun with exactly these words, others are left
// out.
func commandsOf(init int, command []string, began time.Time) (sessions []int) {
	first, ok := readProcess(init)
	if !ok {
		return nil
	}
	group := cgroupOf(init)
	from := sinceBoot(began)
	words := append([]byte(strings.Join(command, "\x00")), 0)
	var same []int
	for _, p := range childrenOf(first.parent) {
		if p.pid == init || p.session != p.pid ||
			p.started < from-2*tick || p.started > from+startSlack || cgroupOf(p.pid) != group {
			continue
		}
		sessions = append(sessions, p.pid)
		if line, err := os.ReadFile(procPath(p.pid, "cmdline")); err == nil && bytes.Equal(line, words) {
			same = append(same, p.pid)
		}
	}
	if len(same) > 0 {
		return same
	}
	return sessions
}

// straysOf returns the sessions of processes that a command has left which was
// gone before anybody saw it: they began after it was asked for, their session
// has lost its first process, and they hold outputs that are not the
// container's own. The runtime waits for just those outputs.
func straysOf(init int, began time.Time) (sessions []int) {
	group := cgroupOf(init)
	from := sinceBoot(began)
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

// holdsOther reports whether one of a process' outputs is a pipe that the
// container's first process does not have.
func holdsOther(init, pid int) bool {
	var own []string
	for _, fd := range []string{"fd/0", "fd/1", "fd/2"} {
		if link, err := os.Readlink(procPath(init, fd)); err == nil {
			own = append(own, link)
		}
	}
	for _, fd := range []string{"fd/1", "fd/2"} {
		link, err := os.Readlink(procPath(pid, fd))
		if err == nil && strings.HasPrefix(link, "pipe:") && !slices.Contains(own, link) {
			return true
		}
	}
	return false
}

// killSessions kills what is left of sessions whose first process is gone, in
// the container that init is the first process of, and returns how many it was.
func killSessions(init int, sessions []int) (n int) {
	group := cgroupOf(init)
	if group == "" {
		return 0 // the container is gone, and everything with it
	}
	for _, s := range sessions {
		if _, lives := readProcess(s); lives {
			continue // it has not been killed yet
		}
		for _, p := range processes() {
			if p.session == s && cgroupOf(p.pid) == group && kill(p) {
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
