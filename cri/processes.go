package cri

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// processes is one look at /proc: the shims of CRI's namespace, and who is
// whose child.
type processes struct {
	shims    []shimProcess
	children map[int][]int
	busy     map[int]bool // shims' programs that start or delete a task
}

// shimProcess is a shim as its command line shows it.
type shimProcess struct {
	pid         int
	id, address string
	binary      string
}

// lookAtProcesses reads all of /proc; what ends meanwhile is left out.
func lookAtProcesses() processes {
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

// isBorne reports whether the command line of a process has an ID in it.
func isBorne(id string) bool {
	entries, err := os.ReadDir("/proc")
	return err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // no process, or it has just ended
		return bytes.Contains(text, []byte(id))
	})
}

// parseShim reads the command line of a shim in CRI's namespace; busy: it is not
// the shim itself but its program run by containerd to start or delete one.
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
	return s, last == "start" || last == "delete", namespace == criNamespace && isID(s.id)
}

// addShims notes the shims of one containerd with their tasks.
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

// below lists what processes have begotten, those begotten last first.
func (p *processes) below(pids []int) (out []int) {
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

// parentOf reads a process's parent. A name may hold anything, even brackets.
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

// cgroupsOf lists the cgroups of a process, one per hierarchy; empty: it is gone.
func cgroupsOf(pid int) (out []string) {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			out = append(out, f[2])
		}
	}
	return out
}
