package cri

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// processes is a scan of /proc: the shims in CRI's namespace and the process tree.
type processes struct {
	shims    []shimProcess
	children map[int][]int
	busy     map[int]bool // shim commands that start or delete a task
}

// shimProcess is a shim, parsed from its command line.
type shimProcess struct {
	pid         int
	id, address string
	binary      string
}

// scanProcesses reads all of /proc. Processes that exit meanwhile are left out.
func scanProcesses() processes {
	p := processes{children: map[int][]int{}, busy: map[int]bool{}}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			p.children[parent] = append(p.children[parent], pid)
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		if s, busy, ok := parseShim(string(text)); ok {
			s.pid = pid
			p.shims = append(p.shims, s)
			p.busy[pid] = busy
		}
	}
	return p
}

// isMentionedByProcess reports whether the command line of any process contains the ID.
func isMentionedByProcess(id string) bool {
	entries, err := os.ReadDir("/proc")
	return err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // not a process, or it has just exited
		return bytes.Contains(text, []byte(id))
	})
}

// parseShim parses the command line of a shim in CRI's namespace. busy means that the process is
// not the shim itself but a command that containerd runs to start or delete one.
func parseShim(cmdline string) (s shimProcess, busy, ok bool) {
	args := strings.Split(strings.TrimRight(cmdline, "\x00"), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") {
		return s, false, false
	}
	s.binary = args[0]
	namespace := ""
	for i := 1; i+1 < len(args); i++ {
		switch strings.TrimPrefix(args[i], "-") {
		case "namespace", "-namespace":
			namespace = args[i+1]
		case "id", "-id":
			s.id = args[i+1]
		case "address", "-address":
			s.address = args[i+1]
		}
	}
	last := args[len(args)-1]
	return s, last == "start" || last == "delete", namespace == criNamespace && isContainerID(s.id)
}

// addShims adds the shims of one containerd to their tasks.
func (p *processes) addShims(tasks map[string]*LeakedTask, address string) {
	for _, s := range p.shims {
		if s.address != address {
			continue
		}
		if tasks[s.id] == nil {
			tasks[s.id] = &LeakedTask{ID: s.id}
		}
		tasks[s.id].Shims = append(tasks[s.id].Shims, s.pid)
	}
}

// descendants returns the descendants of the given processes, in reverse breadth-first order.
func (p *processes) descendants(pids []int) (out []int) {
	seen := map[int]bool{}
	for next := slices.Clone(pids); len(next) > 0; {
		pid := next[0]
		next = next[1:]
		for _, child := range p.children[pid] {
			if !seen[child] && !slices.Contains(pids, child) {
				seen[child] = true
				out = append(out, child)
				next = append(next, child)
			}
		}
	}
	slices.Reverse(out)
	return out
}

// parentOf returns the parent of a process. The process name may contain any character, even
// parentheses.
func parentOf(pid int) (int, bool) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	at := bytes.LastIndexByte(text, ')')
	if err != nil || at < 0 {
		return 0, false
	}
	f := strings.Fields(string(text[at+1:]))
	if len(f) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(f[1])
	return parent, err == nil
}

// cgroupsOf returns the cgroups of a process, one per hierarchy. Empty: the process does not exist.
func cgroupsOf(pid int) (out []string) {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			out = append(out, f[2])
		}
	}
	return out
}
