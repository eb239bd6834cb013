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

// properties returns properties of a systemd unit.
func properties(t *testing.T, unit string, names ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(output(t, "systemctl", "show", "--property="+strings.Join(names, ","), unit)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		out[key] = value
	}
	return out
}

// checkProperties compares properties of a systemd unit.
func checkProperties(t *testing.T, unit string, want map[string]string) {
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

// checkFiles compares files of a cgroup. An empty value means that the file does not exist.
func checkFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := readCgroup(dir, name); got != value {
			t.Errorf("%s/%s is %q, want %q", dir, name, got, value)
		}
	}
}

func readCgroup(dir, name string) string {
	text, err := os.ReadFile(filepath.Join(cgroupRoot, dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// checkSubtreeControl checks that cgroups enable all controllers for their children.
func checkSubtreeControl(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		checkContains(t, dir+"/cgroup.subtree_control", readCgroup(dir, "cgroup.subtree_control"), "cpuset", "cpu",
			"io", "memory", "hugetlb", "pids")
	}
}

// cgroupLimits returns the contents of all limit files of a cgroup and its descendants, by path.
func cgroupLimits(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(filepath.Join(cgroupRoot, dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(cgroupRoot, path)
		for _, name := range []string{
			"cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.low", "memory.high", "memory.swap.max",
			"memory.oom.group", "pids.max", "hugetlb.2MB.max", "cgroup.subtree_control",
		} {
			out[filepath.Join(rel, name)] = readCgroup(rel, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func checkUnchanged(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	for name, value := range before {
		if after[name] != value {
			t.Errorf("%s: %s changed from %q to %q", what, name, value, after[name])
		}
	}
	for name := range maps.Keys(after) {
		if _, ok := before[name]; !ok {
			t.Errorf("%s: %s is new", what, name)
		}
	}
}

// containerIDs returns the pod UID and container ID of each container of pods. They change when a
// container is restarted or a pod is recreated.
func containerIDs(pods ...*corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			out[p.Name+"/"+c.Name] = string(p.UID) + " " + c.ContainerID
		}
	}
	return out
}
