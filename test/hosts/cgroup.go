package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hierarchies lists the mount points of cgroup file systems on this machine.
func hierarchies() (v1, v2 []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		mount, kind, ok := strings.Cut(line, " - ")
		if !ok {
			continue
		}
		at := strings.Fields(mount)[4]
		switch strings.Fields(kind)[0] {
		case "cgroup":
			v1 = append(v1, at)
		case "cgroup2":
			v2 = append(v2, at)
		}
	}
	return v1, v2, nil
}

// makeCgroups creates the host's cgroup in every hierarchy with a child for its own processes. The
// agent creates the cgroups of pods beside that child.
func (r *record) makeCgroups() error {
	v1, v2, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range append(slices.Clone(v1), v2...) {
		top := filepath.Join(h, r.name())
		for _, dir := range []string{top, filepath.Join(top, "runtime")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := initCpuset(dir); err != nil {
				return err
			}
		}
	}
	for _, h := range v2 {
		text, err := os.ReadFile(filepath.Join(h, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, dir := range []string{h, filepath.Join(h, r.name())} {
			for c := range strings.FieldsSeq(string(text)) {
				if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
					return err
				}
			}
		}
	}
	for _, h := range append(slices.Clone(v1), v2...) {
		if err := limitCPU(filepath.Join(h, r.name())); err != nil {
			return err
		}
	}
	return nil
}

// cpuWeights are the CPU weights of a test's host by the name of their file: a quarter of the default. Otherwise each
// host has the same share of busy CPUs as all tests together, and control servers in the processes of tests do not
// respond for minutes.
var cpuWeights = map[string]string{"cpu.shares": "256", "cpu.weight": "25"}

// limitCPU sets, in tests, the CPU weight of a host's cgroup, in a hierarchy with the CPU controller.
func limitCPU(dir string) error {
	if !testing.Testing() {
		return nil
	}
	for name, weight := range cpuWeights {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err != nil {
			continue // another controller, or another version of cgroups
		}
		if err := os.WriteFile(file, []byte(weight), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// initCpuset copies cpus and mems of the parent to a new v1 cpuset. Without them no process may
// enter.
func initCpuset(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		file := filepath.Join(dir, name)
		value, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(value)) != "" {
			continue // no cpuset hierarchy, or already set
		}
		parentValue, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil {
			continue // the root of cgroup v2 has none: they are inherited
		}
		if err := os.WriteFile(file, parentValue, 0o644); err != nil {
			return fmt.Errorf("initialize %s: %w", file, err)
		}
	}
	return nil
}

// joinScript returns a shell prefix that moves the shell into the host's cgroup for its own
// processes. All processes that it starts are then in that cgroup from the start.
func (r *record) joinScript() (string, error) {
	v1, v2, err := hierarchies()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, h := range append(v1, v2...) {
		fmt.Fprintf(&b, "echo $$ > %q || exit 125\n", filepath.Join(h, r.name(), "runtime", "cgroup.procs"))
	}
	return b.String() + r.nsenterScript(), nil
}

// cgroupDirs lists all cgroups of the host, children before parents: its own trees, and cgroups
// that containers have outside of them.
func (r *record) cgroupDirs() ([]string, error) {
	v1, v2, err := hierarchies()
	if err != nil {
		return nil, err
	}
	tops := []string{r.name()}
	for _, p := range r.orphanedCgroups() {
		tops = append(tops, strings.TrimPrefix(p, "/"))
	}
	var out []string
	for _, h := range append(v1, v2...) {
		for _, top := range tops {
			_ = filepath.WalkDir(filepath.Join(h, top), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					out = append(out, path)
				}
				return nil // removed during the walk
			})
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return slices.Compact(out), nil
}

// pidsIn lists the processes in cgroups.
func pidsIn(dirs []string) []int {
	var pids []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// thaw resumes frozen processes, which could otherwise not be killed. Each hierarchy has one of the
// files, or none.
func thaw(dirs []string) {
	for _, dir := range dirs {
		_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0o644)
		_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0o644)
	}
}

// killAll kills every process of the host and waits until all have exited.
func (r *record) killAll(timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		dirs, err := r.cgroupDirs()
		if err != nil {
			return err
		}
		pids := append(pidsIn(dirs), r.runtimeProcesses()...)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v survive SIGKILL", pids)
		}
		thaw(dirs)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// runtimeProcesses lists the processes that have the host's socket or configuration file as an
// argument: its containerd and its shims, in whatever cgroup.
func (r *record) runtimeProcesses() []int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var pids []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !slices.ContainsFunc(strings.Split(string(text), "\x00"), func(arg string) bool {
			return arg == r.socket() || arg == r.configFile()
		}) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// removeCgroups removes the host's cgroups. A killed process leaves its cgroup a moment after it is
// no longer listed, therefore busy ones are retried.
func (r *record) removeCgroups(timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		dirs, err := r.cgroupDirs()
		if err != nil {
			return err
		}
		if len(dirs) == 0 {
			return nil
		}
		var failed error
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
		}
		if failed == nil {
			continue // check again
		}
		if time.Now().After(end) {
			return failed
		}
	}
}

// orphanedCgroups lists the cgroups of containers that were created outside of the host's own:
// those of a sandbox whose configuration names no parent.
func (r *record) orphanedCgroups() []string {
	bundles, _ := filepath.Glob(filepath.Join(r.state(), "io.containerd.runtime.v2.task", "*", "*", "config.json"))
	var out []string
	for _, f := range bundles {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		var spec specs.Spec
		if json.Unmarshal(text, &spec) != nil || spec.Linux == nil {
			continue
		}
		// The host's own cgroups are found in its tree. A path that does not end with the
		// container ID belongs to another owner.
		p := filepath.Clean("/" + spec.Linux.CgroupsPath)
		if filepath.Base(p) == filepath.Base(filepath.Dir(f)) && !strings.HasPrefix(p, "/"+r.name()+"/") {
			out = append(out, p)
		}
	}
	return out
}

// StartInCgroup starts a program in a cgroup of its own, such as /kubepods/poduid, below the host's
// cgroup root, and waits until the program runs. It runs until it exits or the host is stopped.
func (h *Host) StartInCgroup(cgroup, program string, args ...string) (pid int, err error) {
	v1, v2, err := hierarchies()
	if err != nil {
		return 0, err
	}
	var script strings.Builder
	for _, mount := range append(v1, v2...) {
		dir := filepath.Join(mount, h.slot.name())
		for name := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			dir = filepath.Join(dir, name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return 0, err
			}
			if err := initCpuset(dir); err != nil {
				return 0, err
			}
		}
		fmt.Fprintf(&script, "echo $$ > %q || exit 125\n", filepath.Join(dir, "cgroup.procs"))
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", script.String() + `exec "$@"`, "sh", program}, args...)...)
	child, err := startChild(cmd)
	if err != nil {
		return 0, err
	}
	pid = child.cmd.Process.Pid
	return pid, WaitFor(context.Background(), program+" to replace the shell", func() (bool, error) {
		select {
		case <-child.done:
			return true, nil
		default:
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.HasPrefix(string(text), program+"\x00"), nil
	})
}
