package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	sleepContainer = "    image: busybox:1.36\n    command: [sleep, '1000000']\n"
	burstable      = "kubepods.slice/kubepods-burstable.slice"
	bestEffort     = "kubepods.slice/kubepods-besteffort.slice"
)

// firstPods are the pods of the first boot. steady and exact stay for the second. systemd properties
// cannot express the quota of 10.5 ms. Only one pod has its own network namespace, whose setup takes
// seconds on an emulated processor.
var firstPods = map[string]string{
	"steady": "  containers:\n  - name: c\n" + sleepContainer +
		"    resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}\n",
	"exact": "  hostNetwork: true\n  containers:\n  - name: c\n" + sleepContainer +
		"    resources: {limits: {cpu: 105m, memory: 48Mi, hugepages-2Mi: 4Mi}}\n" +
		"    volumeMounts: [{name: huge, mountPath: /huge}]\n" +
		"  volumes:\n  - name: huge\n    emptyDir: {medium: HugePages}\n",
	"poor": "  hostNetwork: true\n  containers:\n  - name: c\n" + sleepContainer,
	"greedy": "  hostNetwork: true\n  containers:\n" +
		"  - name: hog\n    image: busybox:1.36\n    command: [sh, -c, 'sleep 2; exec dd if=/dev/zero of=/dev/null " +
		"bs=96M']\n    resources: {limits: {memory: 32Mi}}\n" +
		"  - name: parent\n    image: busybox:1.36\n" + oomChild,
	"toobig": "  containers:\n  - name: c\n" + sleepContainer +
		"    resources: {limits: {cpu: 10m, memory: 16Mi, hugepages-2Mi: 64Mi}}\n",
}

// oomChild is a container whose child process exceeds the memory limit. The parent prints a line if it
// survives.
const oomChild = "    command: [sh, -c, 'sleep 2; dd if=/dev/zero of=/dev/null bs=96M; " +
	"echo survived; sleep 1000000']\n" +
	"    resources: {limits: {memory: 32Mi}}\n"

// boot creates the pods and waits until systemd has started berth.
func boot(t *testing.T) {
	createPods(t, firstPods)
	if comm := strings.TrimSpace(readFile(t, "/proc/1/comm")); comm != "systemd" {
		t.Errorf("process 1 is %s, want systemd", comm)
	}
	checkContains(t, "controllers", readCgroup(".", "cgroup.controllers"), "cpuset", "cpu", "io", "memory", "hugetlb",
		"pids")
	waitActive(t)
	checkProperties(t, "berth.service", map[string]string{"Type": "notify", "NotifyAccess": "main", "NRestarts": "0"})
}

func waitActive(t *testing.T) {
	t.Helper()
	waitFor(t, "berth.service to be active", func() (bool, string) {
		p := properties(t, "berth.service", "ActiveState", "SubState", "StatusText")
		return p["ActiveState"] == "active" && p["SubState"] == "running" && p["StatusText"] != "", p["ActiveState"] +
			" " + p["StatusText"]
	})
}

// systemdSlices checks the cgroup names of the systemd driver, which berth detects from the runtime.
func systemdSlices(t *testing.T) {
	steady, exact, poor := waitRunning(t, "steady"), waitRunning(t, "exact"), waitRunning(t, "poor")
	for dir, p := range map[string]*corev1.Pod{
		burstable: steady, "kubepods.slice": exact, bestEffort: poor,
	} {
		scope := podSlice(dir, p) + "/cri-containerd-" + containerID(p) + ".scope"
		if readCgroup(scope, "cgroup.procs") == "" {
			t.Errorf("%s: no process in %s", p.Name, scope)
		}
	}
	for _, unit := range []string{"kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice",
		base(podSlice(burstable, steady))} {
		checkProperties(t, unit, map[string]string{"LoadState": "loaded", "ActiveState": "active"})
	}
	checkSubtreeControl(t, ".", "kubepods.slice", burstable, bestEffort, podSlice(burstable, steady))
}

func podSlice(dir string, p *corev1.Pod) string {
	prefix := strings.TrimSuffix(base(dir), ".slice")
	return dir + "/" + prefix + "-pod" + strings.ReplaceAll(string(p.UID), "-", "_") + ".slice"
}

func base(dir string) string { return dir[strings.LastIndex(dir, "/")+1:] }

// sliceLimits checks the limits of QoS classes, pods and containers.
func sliceLimits(t *testing.T) {
	steady, exact, poor := waitRunning(t, "steady"), waitRunning(t, "exact"), waitRunning(t, "poor")
	checkFiles(t, podSlice(burstable, steady), map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "64",
		"hugetlb.2MB.max": "0", "memory.oom.group": "0",
	})
	checkFiles(t, podSlice(burstable, steady)+"/cri-containerd-"+containerID(steady)+".scope", map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0",
		"memory.oom.group": "1",
	})
	checkProperties(t, base(podSlice(burstable, steady)), map[string]string{
		"CPUWeight": "35", "CPUQuotaPerSecUSec": "500ms", "MemoryMax": "67108864", "TasksMax": "64",
	})
	checkFiles(t, podSlice("kubepods.slice", exact), map[string]string{"cpu.weight": "18", "memory.max": "50331648",
		"pids.max": "64"})
	// systemd rounds quotas to hundredths of a CPU. The value depends on who wrote it last. The
	// container's own value is exact.
	if got := readCgroup(podSlice("kubepods.slice", exact), "cpu.max"); got != "10500 100000" && got != "11000 100000" {
		t.Errorf("cpu.max is %q, want 10.5 ms, or 11 as systemd rounds it", got)
	}
	checkFiles(t, podSlice(bestEffort, poor), map[string]string{
		"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "64", "hugetlb.2MB.max": "0",
	})
	checkFiles(t, bestEffort, map[string]string{"cpu.weight": "1", "memory.max": "max"})
	checkAllPodsCgroup(t, "kubepods.slice")
	checkProperties(t, "kubepods.slice", map[string]string{"CPUWeight": "138",
		"MemoryMax": readCgroup("kubepods.slice", "memory.max")})
}

// checkAllPodsCgroup checks the cgroup of all pods: two CPUs minus the reserved half CPU, all memory
// minus the reserved 128 MiB.
func checkAllPodsCgroup(t *testing.T, dir string) {
	t.Helper()
	checkFiles(t, dir, map[string]string{
		"cpu.weight": "138", "cpu.max": "max 100000", "memory.max": fmt.Sprint(meminfo(t, "MemTotal") - 128<<20),
		"pids.max": "max", "hugetlb.2MB.max": "33554432",
	})
}

// reload runs systemctl daemon-reload, which writes the limits that systemd knows. It ignores two values
// of containers, which the runtime sets: systemd 252 rounds the quota and resets memory.oom.group.
func reload(t *testing.T) {
	steady, exact := podSlice(burstable, waitRunning(t, "steady")), podSlice("kubepods.slice", waitRunning(t, "exact"))
	observe := func() map[string]string {
		all := cgroupLimits(t, steady)
		maps.Copy(all, cgroupLimits(t, exact))
		maps.DeleteFunc(all, func(name, value string) bool {
			return strings.HasSuffix(name, ".scope/memory.oom.group") || value == "10500 100000" ||
				value == "11000 100000"
		})
		return all
	}
	before, weight := observe(), readCgroup(burstable, "cpu.weight")
	output(t, "systemctl", "daemon-reload")
	checkUnchanged(t, "daemon-reload", before, observe())
	checkFiles(t, burstable, map[string]string{"cpu.weight": weight})
}

// hugePages checks limits and mounts of huge pages, and that a pod that requests too many is rejected.
func hugePages(t *testing.T) {
	exact := waitRunning(t, "exact")
	checkFiles(t, podSlice("kubepods.slice", exact), map[string]string{"hugetlb.2MB.max": "4194304"})
	checkFiles(t, podSlice("kubepods.slice", exact)+"/cri-containerd-"+containerID(exact)+".scope",
		map[string]string{"hugetlb.2MB.max": "4194304"})
	checkContains(t, "mounts of the pod", output(t, "berth", "exec", "exact", "--", "cat", "/proc/mounts"),
		" /huge hugetlbfs ", "pagesize=2M")
	p := waitPod(t, "toobig", "rejected", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "OutOfhugepages-2Mi" {
		t.Errorf("pod toobig: got %s, want reason OutOfhugepages-2Mi", summary(p))
	}
}

// oomKilled checks containers that exceed their memory limit: every process is killed, the reason is
// OOMKilled, and the container backs off. The runtime may miss the OOM event of one exit: the reason of
// a later exit counts too.
func oomKilled(t *testing.T) {
	oomReason, backedOff := map[string]bool{}, map[string]bool{}
	waitPod(t, "greedy", "OOM-killed and in back-off", func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, terminated := range []*corev1.ContainerStateTerminated{c.State.Terminated,
				c.LastTerminationState.Terminated} {
				if terminated != nil && terminated.ExitCode != 137 {
					t.Errorf("got %s, want exit code 137", summary(p))
				}
				oomReason[c.Name] = oomReason[c.Name] || terminated != nil && terminated.Reason == "OOMKilled"
			}
			if w := c.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" && c.RestartCount > 0 {
				backedOff[c.Name] = strings.HasPrefix(w.Message, "back-off ")
			}
		}
		return oomReason["hog"] && oomReason["parent"] && backedOff["hog"] && backedOff["parent"]
	})
	if log := output(t, "berth", "logs", "greedy", "-c", "parent", "--previous"); strings.Contains(log, "survived") {
		t.Errorf("the parent process survived the OOM kill: %s", log)
	}
}

// berthCheck returns the output of berth check with single spaces, independent of column widths.
func berthCheck(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(output(t, "berth", "check")), " ")
}

// commands checks the output of berth check and berth ps.
func commands(t *testing.T) {
	checkContains(t, "berth check", berthCheck(t), "ok cgroup driver systemd", "ok cgroups cgroup v2",
		"pods can run on this node", "containerd 2.")
	ps := output(t, "berth", "ps")
	checkContains(t, "berth ps", ps, "steady", "exact", "poor", "greedy")
	for line := range strings.Lines(ps) {
		if name, rest, _ := strings.Cut(line, " "); name == "steady" || name == "exact" || name == "poor" {
			if f := strings.Fields(rest); len(f) < 3 || f[0] != "1/1" || f[1] != "Running" || f[2] != "0" {
				t.Errorf("berth ps: got %q, want 1/1 Running 0", line)
			}
		}
	}
}

// restart restarts the service, which must not affect the pods.
func restart(t *testing.T) {
	before := containerIDs(waitRunning(t, "steady"), waitRunning(t, "exact"), waitRunning(t, "poor"))
	limits := cgroupLimits(t, podSlice(burstable, waitRunning(t, "steady")))
	oldPID := properties(t, "berth.service", "MainPID")["MainPID"]
	output(t, "systemctl", "restart", "berth")
	waitActive(t)
	if now := properties(t, "berth.service", "MainPID")["MainPID"]; now == oldPID || now == "0" {
		t.Errorf("MainPID after the restart: got %s, before %s", now, oldPID)
	}
	steady := waitRunning(t, "steady")
	checkUnchanged(t, "restart", before, containerIDs(steady, waitRunning(t, "exact"), waitRunning(t, "poor")))
	checkUnchanged(t, "restart", limits, cgroupLimits(t, podSlice(burstable, steady)))
	if n := container(steady, "c").RestartCount; n != 0 {
		t.Errorf("got %d container restarts, want 0", n)
	}
}

// removal checks that neither cgroup nor unit of a deleted pod is left.
func removal(t *testing.T) {
	poor, greedy := podSlice(bestEffort, waitRunning(t, "poor")), podSlice(burstable,
		waitPod(t, "greedy", "listed", func(*corev1.Pod) bool { return true }))
	removePods(t, "poor", "greedy", "toobig")
	for _, dir := range []string{poor, greedy} {
		if cgroupExists(dir) {
			t.Errorf("cgroup %s still exists", dir)
		}
		if p := properties(t, base(dir), "ActiveState", "SubState"); p["ActiveState"] != "inactive" {
			t.Errorf("unit %s: got %v, want inactive", base(dir), p)
		}
	}
	waitRunning(t, "steady")
}
