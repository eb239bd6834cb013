package exectracker

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A child process that has created its own session, as daemons do, does not end with the session of
// its command. It still belongs to the command if it was observed as its descendant, or if it holds
// one of the output pipes that were created for the command.

// processTree is what one command has started, as far as it was observed.
type processTree struct {
	Leader  processID   `json:"leader"`
	Outputs []string    `json:"outputs,omitempty"` // pipes of the leader, as named by /proc
	Members []processID `json:"members,omitempty"` // processes that have left its session
}

// processID identifies a process even if its PID is reused.
type processID struct {
	PID     int           `json:"pid"`
	Started time.Duration `json:"started"` // since boot
}

func processIDOf(p process) processID { return processID{p.pid, p.started} }

func (m processID) alive() bool {
	p, lives := readProcess(m.PID)
	return lives && p.started == m.Started
}

// observeTrees updates the process trees of the given sessions. It reports whether the record has
// changed.
func (n *record) observeTrees(init int, sessions []int) (changed bool) {
	for _, s := range sessions {
		p, lives := readProcess(s)
		if !lives {
			changed = n.observeOrphans(init, s) || changed
			continue
		}
		i := slices.IndexFunc(n.Trees, func(f processTree) bool { return f.Leader == processIDOf(p) })
		if i < 0 {
			i, changed = len(n.Trees), true
			n.Trees = append(n.Trees, processTree{Leader: processIDOf(p), Outputs: outputsOf(init, s)})
		}
		f := &n.Trees[i]
		for _, d := range descendants(s) {
			if d.session != s && !slices.Contains(f.Members, processIDOf(d)) {
				f.Members, changed = append(f.Members, processIDOf(d)), true
			}
		}
	}
	return changed
}

// observeOrphans records the output pipes of the remaining processes of a session whose leader was
// never observed.
func (n *record) observeOrphans(init, session int) (changed bool) {
	if slices.ContainsFunc(n.Trees, func(f processTree) bool { return f.Leader.PID == session }) {
		return false
	}
	first, lives := readProcess(init)
	if !lives {
		return false
	}
	members := membersOf(first)
	readers := sync.OnceValue(func() []string { return readPipes(first, members) })
	f := processTree{Leader: processID{PID: session}}
	for _, p := range members {
		if p.session == session && p.started >= n.RequestedAt-2*tick {
			f.Outputs = append(f.Outputs, outputsOf(init, p.pid)...)
			f.Outputs = append(f.Outputs, unreadOutputs(init, p.pid, readers)...)
		}
	}
	if len(f.Outputs) > 0 {
		n.Trees = append(n.Trees, f)
	}
	return len(f.Outputs) > 0
}

// descendants returns all descendants of a process.
func descendants(of int) (found []process) {
	found = childrenOf(of)
	for i := 0; i < len(found); i++ { // found grows
		found = append(found, childrenOf(found[i].pid)...)
	}
	return found
}

// killTrees kills the living processes of trees whose leader has ended, in the container with the
// given init process. It returns their number.
func (n *record) killTrees(init int) (killed int) {
	group := cgroupOf(init)
	if group == "" {
		return 0 // the container is gone with all its processes
	}
	for _, f := range n.Trees {
		if f.Leader.alive() {
			continue
		}
		for _, p := range f.aliveMembers(processes(), func(p process) bool {
			return p.pid != init && p.started >= n.RequestedAt-2*tick && cgroupOf(p.pid) == group
		}) {
			if kill(p) {
				killed++
			}
		}
	}
	return killed
}

// aliveMembers returns the living members and their descendants. Only processes accepted by may are
// considered.
func (f *processTree) aliveMembers(all []process, may func(process) bool) (found []process) {
	for _, p := range all {
		if (slices.Contains(f.Members, processIDOf(p)) || p.started >= f.Leader.Started) && may(p) &&
			(slices.Contains(f.Members, processIDOf(p)) || holdsPipe(p.pid, f.Outputs)) {
			found = append(found, p)
		}
	}
	for i := 0; i < len(found); i++ { // found grows
		for _, p := range all {
			its := p.parent == found[i].pid || p.session == found[i].pid
			if its && !slices.ContainsFunc(found, func(x process) bool { return x.pid == p.pid }) && may(p) {
				found = append(found, p)
			}
		}
	}
	return found
}

// outputsOf returns the output pipes of a process that the runtime has created for a command: the
// container's shim reads them, and the container's init process does not have them. The shim does not
// read a pipe between processes of the container.
func outputsOf(init, pid int) (pipes []string) {
	var own, read []string
	for _, fd := range []string{"fd/0", "fd/1", "fd/2"} {
		if link, err := os.Readlink(procPath(init, fd)); err == nil {
			own = append(own, link)
		}
	}
	for _, fd := range []string{"fd/1", "fd/2"} {
		link, err := os.Readlink(procPath(pid, fd))
		if err != nil || !strings.HasPrefix(link, pipePrefix) || slices.Contains(own, link) ||
			slices.Contains(pipes, link) {
			continue
		}
		if read == nil {
			first, _ := readProcess(init)
			read = openPipes(first.parent)
		}
		if slices.Contains(read, link) {
			pipes = append(pipes, link)
		}
	}
	return pipes
}

// unreadOutputs returns the pipes that a process has as its two outputs, if they are not those of init and
// not among the given pipes, which have a reader. Otherwise it returns none.
func unreadOutputs(init, pid int, readers func() []string) (pipes []string) {
	for _, fd := range []string{"fd/1", "fd/2"} {
		link, err := os.Readlink(procPath(pid, fd))
		own, _ := os.Readlink(procPath(init, fd))
		if err != nil || !strings.HasPrefix(link, pipePrefix) || link == own || slices.Contains(pipes, link) {
			return nil
		}
		pipes = append(pipes, link)
	}
	isRead := func(pipe string) bool { return slices.Contains(readers(), pipe) }
	if slices.ContainsFunc(pipes, isRead) {
		return nil
	}
	return pipes
}

// readPipes returns the pipes that a container's shim has open or that a process of the container has open
// for reading. A process that cannot be inspected has ended.
func readPipes(init process, members []process) (pipes []string) {
	pipes = openPipes(init.parent)
	for _, p := range members {
		for fd, pipe := range openFiles(p.pid) {
			if strings.HasPrefix(pipe, pipePrefix) && isReadable(p.pid, fd) {
				pipes = append(pipes, pipe)
			}
		}
	}
	return pipes
}

// isReadable reports whether a file descriptor of a process is open for reading.
func isReadable(pid int, fd string) bool {
	info, err := os.ReadFile(procPath(pid, filepath.Join("fdinfo", fd)))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(info)) {
		if flags, is := strings.CutPrefix(line, "flags:"); is {
			mode, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return err == nil && mode&unix.O_ACCMODE != unix.O_WRONLY
		}
	}
	return false
}

// pipePrefix begins the name of a pipe in /proc.
const pipePrefix = "pipe:"

// openPipes returns the pipes that a process has open. None: the process has ended.
func openPipes(pid int) (pipes []string) {
	for _, link := range openFiles(pid) {
		if strings.HasPrefix(link, pipePrefix) {
			pipes = append(pipes, link)
		}
	}
	return pipes
}

// openFiles returns the file descriptors of a process with what they refer to. None: the process has ended.
func openFiles(pid int) map[string]string {
	open, err := os.ReadDir(procPath(pid, "fd"))
	if err != nil {
		return nil
	}
	files := make(map[string]string, len(open))
	for _, e := range open {
		if link, err := os.Readlink(filepath.Join(procPath(pid, "fd"), e.Name())); err == nil {
			files[e.Name()] = link
		}
	}
	return files
}

// holdsPipe reports whether a process has one of the pipes open.
func holdsPipe(pid int, pipes []string) bool {
	isOne := func(pipe string) bool { return slices.Contains(pipes, pipe) }
	return len(pipes) > 0 && slices.ContainsFunc(openPipes(pid), isOne)
}
