package hosts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Leaks lists what remains of a stopped host: processes, mounts, network namespaces, links,
// rules, cgroups, addresses, files. It should be empty.
//
// Stop records the list before it releases the host's number, because another host may reuse the
// number later.
func (h *Host) Leaks() []string {
	h.mu.Lock()
	recorded := h.stoppedLeaks
	h.mu.Unlock()
	if recorded != nil {
		return *recorded
	}
	return h.leaks()
}

func (h *Host) leaks() []string {
	r := &h.slot.record
	out := h.podOnlyResources()
	for _, pid := range r.runtimeProcesses() {
		out = append(out, "process "+describe(pid))
	}
	for _, l := range r.links() {
		out = append(out, "link "+l)
	}
	dirs, err := r.cgroupDirs()
	if err != nil {
		out = append(out, err.Error())
	}
	for _, d := range dirs {
		out = append(out, "cgroup "+d)
	}
	for _, f := range []string{r.root(), filepath.Join(r.Dir, "cni")} {
		if _, err := os.Lstat(f); err == nil {
			out = append(out, "file "+f)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// PodResources lists what remains of pods on a running host: shims, processes, mounts, network
// namespaces, ports of the bridge, rules, addresses, directories, records of containerd, and
// cgroups of pods. It is empty when the host has no pod.
func (h *Host) PodResources() []string {
	r := &h.slot.record
	out := h.podOnlyResources()
	dirs, err := r.cgroupDirs()
	if err != nil {
		out = append(out, err.Error())
	}
	for _, d := range dirs {
		if podCgroup(d) {
			out = append(out, "cgroup "+d)
		}
	}
	for _, l := range r.links() {
		if l != r.bridge() {
			out = append(out, "link "+l)
		}
	}
	for _, dir := range r.runtimeDirs() {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for i, f := range files {
			files[i] = filepath.Base(f)
		}
		out = append(out, fmt.Sprintf("directory %s %v", dir, files))
	}
	out = append(out, h.containerdRecords(context.Background())...)
	ids := h.loggedIDs.read(r.log())
	for _, socket := range r.shimSocketsOf(ids) {
		out = append(out, "file "+socket)
	}
	for _, chain := range r.chainsOf(ids) {
		out = append(out, "chain "+chain)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// WaitRuncInit waits until no process is in runc init any more: a start may return before the last
// step of runc.
func (h *Host) WaitRuncInit(ctx context.Context) error {
	isInit := func(l string) bool { return strings.HasPrefix(l, "process ") && strings.HasSuffix(l, "runc init") }
	return WaitFor(ctx, "runc init to end", func() (bool, error) {
		return !slices.ContainsFunc(h.podOnlyResources(), isInit), nil
	})
}

// podOnlyResources lists the resources that only pods cause.
func (h *Host) podOnlyResources() []string {
	r := &h.slot.record
	var out []string
	dirs, _ := r.cgroupDirs()
	h.mu.Lock()
	hostPIDs := make(map[int]bool, len(h.agents)+1)
	hostPIDs[h.slot.Holder] = true
	for _, a := range h.agents {
		hostPIDs[a.Pid()] = true
	}
	if h.daemon != nil {
		hostPIDs[h.daemon.cmd.Process.Pid] = true
	}
	h.mu.Unlock()
	for _, pid := range pidsIn(dirs) {
		if !hostPIDs[pid] {
			out = append(out, "process "+describe(pid))
		}
	}
	for _, m := range r.mounts() {
		if !slices.Contains(r.Below, m) { // the agent's own directory is a mount
			out = append(out, "mount "+m)
		}
	}
	rules, _ := r.rules()
	for _, rule := range rules {
		out = append(out, "rule "+rule)
	}
	for _, a := range r.addressesInUse() {
		out = append(out, "address "+a)
	}
	for _, f := range append(r.cniCache(), r.sharedDirShimSockets()...) {
		out = append(out, "file "+f)
	}
	return out
}

// slotReused reports whether another host has the slot of a stopped host.
func slotReused(r *record) bool {
	now, err := readRecord(r.Number)
	return err == nil && (now.Owner != r.Owner || now.Dir != r.Dir)
}

func describe(pid int) string {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return strconv.Itoa(pid) + " " + strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " "))
}
