package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// reboot is what was there before it: the same pods, recreated.
func reboot(t *testing.T) {
	active(t)
	for _, name := range []string{"steady", "exact"} {
		p := running(t, name)
		if n := container(p, "c").RestartCount; n != 1 {
			t.Errorf("%s: %d restarts: %s", name, n, brief(p))
		}
	}
	steady := running(t, "steady")
	files(t, podSlice(tier, steady), map[string]string{"cpu.weight": "35", "memory.max": "67108864"})
	contains(t, "berth ps", output(t, "berth", "ps"), "steady", "exact")
}

// second are the pods of the second boot, after the change of the driver.
var second = map[string]string{
	"steady2": first["steady"],
	"exact2":  first["exact"],
	"greedy2": "  hostNetwork: true\n  containers:\n  - name: family\n    image: busybox:1.36\n" + family,
}

// changeDriver ends all pods, then has the runtime use cgroupfs. The agent comes
// up before the runtime answers, takes systemd for granted, hears otherwise, and
// restarts before it touches a pod.
func changeDriver(t *testing.T) {
	drop(t, "steady", "exact")
	edit(t, "/etc/containerd/config.toml", "SystemdCgroup = true", "SystemdCgroup = false")
	edit(t, "/etc/berth/config.yaml", "singleProcessOOMKill: false", "singleProcessOOMKill: true")
	output(t, "systemctl", "stop", "berth", "containerd")
	output(t, "systemctl", "start", "--no-block", "--job-mode=ignore-dependencies", "berth")
	wait(t, "berth to say that the runtime does not answer", func() (bool, string) {
		out, err := exec.CommandContext(t.Context(), "berth", "ps").CombinedOutput()
		return err == nil && strings.Contains(string(out), "container runtime"), string(out)
	})
	put(t, second)
	output(t, "systemctl", "start", "containerd")
	wait(t, "berth to begin anew", func() (bool, string) {
		said := output(t, "journalctl", "-b", "-u", "berth", "-o", "cat", "--no-pager")
		return strings.Contains(said, "restarting") && strings.Contains(said, "another cgroup driver"), said
	})
	active(t)
	if n := properties(t, "berth.service", "NRestarts")["NRestarts"]; n != "0" {
		t.Errorf("systemd started it again %s times, and it begins anew as the same service", n)
	}
	contains(t, "berth check", checked(t), "cgroup driver cgroupfs")
}

func edit(t *testing.T, file, before, after string) {
	t.Helper()
	text := readFile(t, file)
	if !strings.Contains(text, before) {
		t.Fatalf("%s: no %q in\n%s", file, before, text)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, before, after)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cgroupfs are the names and limits of that driver.
func cgroupfs(t *testing.T) {
	steady, exact := running(t, "steady2"), running(t, "exact2")
	dir := "kubepods/burstable/pod" + string(steady.UID)
	controlled(t, ".", "kubepods", "kubepods/burstable", dir)
	files(t, dir, map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "64", "hugetlb.2MB.max": "0", "memory.oom.group": "0",
	})
	files(t, dir+"/"+id(steady), map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "0",
	})
	if file(dir+"/"+id(steady), "cgroup.procs") == "" {
		t.Error("no process in the container's cgroup")
	}
	files(t, "kubepods/pod"+string(exact.UID), map[string]string{
		"cpu.weight": "18", "cpu.max": "10500 100000", "memory.max": "50331648", "hugetlb.2MB.max": "4194304",
	})
	allPods(t, "kubepods")
	files(t, "kubepods/pod"+string(exact.UID)+"/"+id(exact), map[string]string{"hugetlb.2MB.max": "4194304"})
}

// oomSingle is a container of which the kernel kills one process: it goes on.
func oomSingle(t *testing.T) {
	p := running(t, "greedy2")
	wait(t, "the child to be killed", func() (bool, string) {
		log := output(t, "berth", "logs", "greedy2")
		return strings.Contains(log, "survived"), log
	})
	dir := "kubepods/burstable/pod" + string(p.UID)
	contains(t, "memory.events", file(dir, "memory.events"), "oom_kill 1")
	if c := container(running(t, "greedy2"), "family"); c.RestartCount != 0 {
		t.Errorf("restarted: %s", brief(p))
	}
}

// removalOfFiles leaves no cgroup of any pod.
func removalOfFiles(t *testing.T) {
	drop(t, "exact2", "greedy2", "mapped", "rooted", "armed", "busy")
	for _, pattern := range []string{"kubepods/pod*", "kubepods/*/pod*", "kubepods.slice/*pod*-pod*", "kubepods.slice/*/*-pod*"} {
		found, err := filepath.Glob(filepath.Join(cgroupRoot, pattern))
		if err != nil || len(found) > 0 {
			t.Errorf("left: %v, %v", found, err)
		}
	}
}

func there(dir string) bool {
	_, err := os.Stat(filepath.Join(cgroupRoot, dir))
	return err == nil
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
