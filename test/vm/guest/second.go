package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// reboot checks that the pods of the first boot run again.
func reboot(t *testing.T) {
	waitActive(t)
	for _, name := range []string{"steady", "exact"} {
		p := waitRunning(t, name)
		if n := container(p, "c").RestartCount; n != 1 {
			t.Errorf("pod %s: got %d restarts, want 1: %s", name, n, summary(p))
		}
	}
	steady := waitRunning(t, "steady")
	checkFiles(t, podSlice(burstable, steady), map[string]string{"cpu.weight": "35", "memory.max": "67108864"})
	checkContains(t, "berth ps", output(t, "berth", "ps"), "steady", "exact")
}

// secondPods are the pods of the second boot, created during the change of the cgroup driver.
var secondPods = map[string]string{
	"steady2": firstPods["steady"],
	"exact2":  firstPods["exact"],
	"greedy2": "  hostNetwork: true\n  containers:\n  - name: parent\n    image: busybox:1.36\n" + oomChild,
}

// changeDriver deletes all pods, then switches the runtime to cgroupfs. The agent starts before the
// runtime and assumes the systemd driver. When the runtime reports cgroupfs, the agent restarts before
// it starts a pod.
func changeDriver(t *testing.T) {
	removePods(t, "steady", "exact")
	edit(t, "/etc/containerd/config.toml", "SystemdCgroup = true", "SystemdCgroup = false")
	edit(t, "/etc/berth/config.yaml", "singleProcessOOMKill: false", "singleProcessOOMKill: true")
	output(t, "systemctl", "stop", "berth", "containerd")
	output(t, "systemctl", "start", "--no-block", "--job-mode=ignore-dependencies", "berth")
	waitFor(t, "berth ps to report that the runtime is unavailable", func() (bool, string) {
		out, err := exec.CommandContext(t.Context(), "berth", "ps").CombinedOutput()
		return err == nil && strings.Contains(string(out), "container runtime"), string(out)
	})
	createPods(t, secondPods)
	output(t, "systemctl", "start", "containerd")
	waitFor(t, "berth to restart", func() (bool, string) {
		log := output(t, "journalctl", "-b", "-u", "berth", "-o", "cat", "--no-pager")
		return strings.Contains(log, "restarting") && strings.Contains(log, "another cgroup driver"), log
	})
	waitActive(t)
	if n := properties(t, "berth.service", "NRestarts")["NRestarts"]; n != "0" {
		t.Errorf("NRestarts: got %s, want 0: the agent restarts within the same service", n)
	}
	checkContains(t, "berth check", berthCheck(t), "cgroup driver cgroupfs")
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

// cgroupfs checks the cgroup names and limits of the cgroupfs driver.
func cgroupfs(t *testing.T) {
	steady, exact := waitRunning(t, "steady2"), waitRunning(t, "exact2")
	dir := "kubepods/burstable/pod" + string(steady.UID)
	checkSubtreeControl(t, ".", "kubepods", "kubepods/burstable", dir)
	checkFiles(t, dir, map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "64",
		"hugetlb.2MB.max": "0", "memory.oom.group": "0",
	})
	checkFiles(t, dir+"/"+containerID(steady), map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0",
		"memory.oom.group": "0",
	})
	if readCgroup(dir+"/"+containerID(steady), "cgroup.procs") == "" {
		t.Error("no process in the container's cgroup")
	}
	checkFiles(t, "kubepods/pod"+string(exact.UID), map[string]string{
		"cpu.weight": "18", "cpu.max": "10500 100000", "memory.max": "50331648", "hugetlb.2MB.max": "4194304",
	})
	checkAllPodsCgroup(t, "kubepods")
	checkFiles(t, "kubepods/pod"+string(exact.UID)+"/"+containerID(exact),
		map[string]string{"hugetlb.2MB.max": "4194304"})
}

// oomSingle checks that a container keeps running after the kernel kills one of its processes.
func oomSingle(t *testing.T) {
	p := waitRunning(t, "greedy2")
	waitFor(t, "the child to be killed", func() (bool, string) {
		log := output(t, "berth", "logs", "greedy2")
		return strings.Contains(log, "survived"), log
	})
	dir := "kubepods/burstable/pod" + string(p.UID)
	checkContains(t, "memory.events", readCgroup(dir, "memory.events"), "oom_kill 1")
	if c := container(waitRunning(t, "greedy2"), "parent"); c.RestartCount != 0 {
		t.Errorf("container was restarted: %s", summary(p))
	}
}

// removalCgroupfs checks that no cgroup of a deleted pod is left.
func removalCgroupfs(t *testing.T) {
	removePods(t, "exact2", "greedy2", "mapped", "rooted", "armed", "busy")
	for _, pattern := range []string{"kubepods/pod*", "kubepods/*/pod*", "kubepods.slice/*pod*-pod*",
		"kubepods.slice/*/*-pod*"} {
		found, err := filepath.Glob(filepath.Join(cgroupRoot, pattern))
		if err != nil || len(found) > 0 {
			t.Errorf("cgroups left: %v, %v", found, err)
		}
	}
}

func cgroupExists(dir string) bool {
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
