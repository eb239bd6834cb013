package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const cgroupRoot = "/sys/fs/cgroup"

// properties asks systemd for some of a unit's.
func properties(t *testing.T, unit string, names ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(output(t, "systemctl", "show", "--property="+strings.Join(names, ","), unit)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		out[key] = value
	}
	return out
}

// has compares properties of a unit.
func has(t *testing.T, unit string, want map[string]string) {
	t.Helper()
	var names []string
	for name := range want {
		names = append(names, name)
	}
	got := properties(t, unit, names...)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s: %s is %q, want %q", unit, name, got[name], value)
		}
	}
}

// files compares files of a cgroup; "" means that the file is not there.
func files(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := file(dir, name); got != value {
			t.Errorf("%s/%s is %q, want %q", dir, name, got, value)
		}
	}
}

func file(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(cgroupRoot, dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// controlled checks that the cgroups below a cgroup may be limited.
func controlled(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		contains(t, dir+"/cgroup.subtree_control", file(dir, "cgroup.subtree_control"), "cpuset", "cpu", "io", "memory", "hugetlb", "pids")
	}
}

// settings are all the limits below a cgroup, by file.
func settings(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(filepath.Join(cgroupRoot, dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(cgroupRoot, path)
		for _, name := range []string{
			"cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.low", "memory.high", "memory.swap.max", "memory.oom.group", "pids.max", "hugetlb.2MB.max", "cgroup.subtree_control",
		} {
			out[filepath.Join(rel, name)] = file(rel, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	for name, value := range before {
		if after[name] != value {
			t.Errorf("%s: %s was %q and is %q", what, name, value, after[name])
		}
	}
	for name := range maps.Keys(after) {
		if _, was := before[name]; !was {
			t.Errorf("%s: %s is new", what, name)
		}
	}
}

// lives are the running containers of pods: who was restarted or recreated has
// another.
func lives(pods ...*corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			out[p.Name+"/"+c.Name] = string(p.UID) + " " + c.ContainerID
		}
	}
	return out
}
