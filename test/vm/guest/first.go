package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	box   = "    image: busybox:1.36\n    command: [sleep, '1000000']\n"
	tier  = "kubepods.slice/kubepods-burstable.slice"
	least = "kubepods.slice/kubepods-besteffort.slice"
)

// first are the pods of the first boot. steady and exact live on in the second.
// A quota of 10.5 ms is one that systemd has no property for. Only one pod has a
// network of its own, which costs an emulated processor seconds.
var first = map[string]string{
	"steady": "  containers:\n  - name: c\n" + box +
		"    resources: {requests: {cpu: 250m, memory: 32Mi}, limits: {cpu: 500m, memory: 64Mi}}\n",
	"exact": "  hostNetwork: true\n  containers:\n  - name: c\n" + box +
		"    resources: {limits: {cpu: 105m, memory: 48Mi, hugepages-2Mi: 4Mi}}\n" +
		"    volumeMounts: [{name: huge, mountPath: /huge}]\n" +
		"  volumes:\n  - name: huge\n    emptyDir: {medium: HugePages}\n",
	"poor": "  hostNetwork: true\n  containers:\n  - name: c\n" + box,
	"greedy": "  hostNetwork: true\n  containers:\n" +
		"  - name: hog\n    image: busybox:1.36\n    command: [sh, -c, 'sleep 2; exec dd if=/dev/zero of=/dev/null bs=96M']\n    resources: {limits: {memory: 32Mi}}\n" +
		"  - name: family\n    image: busybox:1.36\n" + family,
	"toobig": "  containers:\n  - name: c\n" + box + "    resources: {limits: {cpu: 10m, memory: 16Mi, hugepages-2Mi: 64Mi}}\n",
}

// family is a container whose child takes too much memory, and who says so if
// it is still there then.
const family = "    command: [sh, -c, 'sleep 2; dd if=/dev/zero of=/dev/null bs=96M; echo survived; sleep 1000000']\n" +
	"    resources: {limits: {memory: 32Mi}}\n"

// boot waits for berth, which systemd started, and gives it its pods.
func boot(t *testing.T) {
	put(t, first)
	if comm := strings.TrimSpace(readFile(t, "/proc/1/comm")); comm != "systemd" {
		t.Errorf("process 1 is %s", comm)
	}
	contains(t, "controllers", file(".", "cgroup.controllers"), "cpuset", "cpu", "io", "memory", "hugetlb", "pids")
	active(t)
	has(t, "berth.service", map[string]string{"Type": "notify", "NotifyAccess": "main", "NRestarts": "0"})
}

func active(t *testing.T) {
	t.Helper()
	wait(t, "berth.service to be active", func() (bool, string) {
		p := properties(t, "berth.service", "ActiveState", "SubState", "StatusText")
		return p["ActiveState"] == "active" && p["SubState"] == "running" && p["StatusText"] != "", p["ActiveState"] + " " + p["StatusText"]
	})
}

// slices are the names of the systemd driver, which is the default: berth
// asked the runtime.
func slices(t *testing.T) {
	steady, exact, poor := running(t, "steady"), running(t, "exact"), running(t, "poor")
	for dir, p := range map[string]*corev1.Pod{
		tier: steady, "kubepods.slice": exact, least: poor,
	} {
		scope := podSlice(dir, p) + "/cri-containerd-" + id(p) + ".scope"
		if file(scope, "cgroup.procs") == "" {
			t.Errorf("%s: no process in %s", p.Name, scope)
		}
	}
	for _, unit := range []string{"kubepods.slice", "kubepods-burstable.slice", "kubepods-besteffort.slice", base(podSlice(tier, steady))} {
		has(t, unit, map[string]string{"LoadState": "loaded", "ActiveState": "active"})
	}
	controlled(t, ".", "kubepods.slice", tier, least, podSlice(tier, steady))
}

func podSlice(dir string, p *corev1.Pod) string {
	prefix := strings.TrimSuffix(base(dir), ".slice")
	return dir + "/" + prefix + "-pod" + strings.ReplaceAll(string(p.UID), "-", "_") + ".slice"
}

func base(dir string) string { return dir[strings.LastIndex(dir, "/")+1:] }

// sliceLimits are those of tiers, pods and containers.
func sliceLimits(t *testing.T) {
	steady, exact, poor := running(t, "steady"), running(t, "exact"), running(t, "poor")
	files(t, podSlice(tier, steady), map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "pids.max": "64", "hugetlb.2MB.max": "0", "memory.oom.group": "0",
	})
	files(t, podSlice(tier, steady)+"/cri-containerd-"+id(steady)+".scope", map[string]string{
		"cpu.weight": "35", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1",
	})
	has(t, base(podSlice(tier, steady)), map[string]string{
		"CPUWeight": "35", "CPUQuotaPerSecUSec": "500ms", "MemoryMax": "67108864", "TasksMax": "64",
	})
	files(t, podSlice("kubepods.slice", exact), map[string]string{"cpu.weight": "18", "memory.max": "50331648", "pids.max": "64"})
	// systemd has quotas in hundredths of a CPU. Which of the two stands there
	// depends on what it was last asked; the container's own is as it is.
	if got := file(podSlice("kubepods.slice", exact), "cpu.max"); got != "10500 100000" && got != "11000 100000" {
		t.Errorf("cpu.max is %q, want 10.5 ms, or 11 as systemd rounds it", got)
	}
	files(t, podSlice(least, poor), map[string]string{
		"cpu.weight": "1", "cpu.max": "max 100000", "memory.max": "max", "pids.max": "64", "hugetlb.2MB.max": "0",
	})
	files(t, least, map[string]string{"cpu.weight": "1", "memory.max": "max"})
	allPods(t, "kubepods.slice")
	has(t, "kubepods.slice", map[string]string{"CPUWeight": "138", "MemoryMax": file("kubepods.slice", "memory.max")})
}

// allPods is the cgroup of all pods: two CPUs less the half that is reserved,
// all memory less the 128 MiB that are.
func allPods(t *testing.T, dir string) {
	t.Helper()
	files(t, dir, map[string]string{
		"cpu.weight": "138", "cpu.max": "max 100000", "memory.max": fmt.Sprint(meminfo(t, "MemTotal") - 128<<20), "pids.max": "max", "hugetlb.2MB.max": "33554432",
	})
}

// reload has systemd read its units again, which writes the limits that it
// knows of. Containers' own are the runtime's: systemd 252 rounds their quota and
// takes memory.oom.group away, for any pod.
func reload(t *testing.T) {
	steady, exact := podSlice(tier, running(t, "steady")), podSlice("kubepods.slice", running(t, "exact"))
	look := func() map[string]string {
		all := settings(t, steady)
		maps.Copy(all, settings(t, exact))
		maps.DeleteFunc(all, func(name, value string) bool {
			return strings.HasSuffix(name, ".scope/memory.oom.group") || value == "10500 100000" || value == "11000 100000"
		})
		return all
	}
	before, weight := look(), file(tier, "cpu.weight")
	output(t, "systemctl", "daemon-reload")
	same(t, "daemon-reload", before, look())
	files(t, tier, map[string]string{"cpu.weight": weight})
}

// hugePages are limited, mounted, and refused when there are not enough.
func hugePages(t *testing.T) {
	exact := running(t, "exact")
	files(t, podSlice("kubepods.slice", exact), map[string]string{"hugetlb.2MB.max": "4194304"})
	files(t, podSlice("kubepods.slice", exact)+"/cri-containerd-"+id(exact)+".scope", map[string]string{"hugetlb.2MB.max": "4194304"})
	contains(t, "mounts of the pod", output(t, "berth", "exec", "exact", "--", "cat", "/proc/mounts"), " /huge hugetlbfs ", "pagesize=2M")
	p := pod(t, "toobig", "refused", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if p.Status.Reason != "OutOfhugepages-2Mi" {
		t.Errorf("toobig: %s", brief(p))
	}
}

// oomKilled is a container over its limit: killed, named so, waiting. With it
// goes every process of its container. Runtimes watch for it in a race with the
// exit, and lose it at times: the next life counts as well.
func oomKilled(t *testing.T) {
	named, waited := map[string]bool{}, map[string]bool{}
	pod(t, "greedy", "killed for memory and waiting", func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			for _, end := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if end != nil && end.ExitCode != 137 {
					t.Errorf("%s", brief(p))
				}
				named[c.Name] = named[c.Name] || end != nil && end.Reason == "OOMKilled"
			}
			if w := c.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" && c.RestartCount > 0 {
				waited[c.Name] = strings.HasPrefix(w.Message, "back-off ")
			}
		}
		return named["hog"] && named["family"] && waited["hog"] && waited["family"]
	})
	if log := output(t, "berth", "logs", "greedy", "-c", "family", "--previous"); strings.Contains(log, "survived") {
		t.Errorf("a process of the container was left: %s", log)
	}
}

// checked is what berth check says, in words one space apart: its columns are as
// wide as its longest name.
func checked(t *testing.T) string {
	t.Helper()
	return strings.Join(strings.Fields(output(t, "berth", "check")), " ")
}

// commands are those that look at the host.
func commands(t *testing.T) {
	contains(t, "berth check", checked(t), "ok cgroup driver systemd", "ok cgroups cgroup v2", "pods can run on this node", "containerd 2.")
	ps := output(t, "berth", "ps")
	contains(t, "berth ps", ps, "steady", "exact", "poor", "greedy")
	for line := range strings.Lines(ps) {
		if name, rest, _ := strings.Cut(line, " "); name == "steady" || name == "exact" || name == "poor" {
			if f := strings.Fields(rest); len(f) < 3 || f[0] != "1/1" || f[1] != "Running" || f[2] != "0" {
				t.Errorf("berth ps: %s", line)
			}
		}
	}
}

// restart is that of the service, which is nothing to the pods.
func restart(t *testing.T) {
	before := lives(running(t, "steady"), running(t, "exact"), running(t, "poor"))
	limits := settings(t, podSlice(tier, running(t, "steady")))
	was := properties(t, "berth.service", "MainPID")["MainPID"]
	output(t, "systemctl", "restart", "berth")
	active(t)
	if now := properties(t, "berth.service", "MainPID")["MainPID"]; now == was || now == "0" {
		t.Errorf("the service has process %s, and had %s", now, was)
	}
	steady := running(t, "steady")
	same(t, "restart", before, lives(steady, running(t, "exact"), running(t, "poor")))
	same(t, "restart", limits, settings(t, podSlice(tier, steady)))
	if n := container(steady, "c").RestartCount; n != 0 {
		t.Errorf("%d restarts", n)
	}
}

// removal leaves neither cgroup nor unit of a pod.
func removal(t *testing.T) {
	poor, greedy := podSlice(least, running(t, "poor")), podSlice(tier, pod(t, "greedy", "there", func(*corev1.Pod) bool { return true }))
	drop(t, "poor", "greedy", "toobig")
	for _, dir := range []string{poor, greedy} {
		if there(dir) {
			t.Errorf("%s is still there", dir)
		}
		if p := properties(t, base(dir), "ActiveState", "SubState"); p["ActiveState"] != "inactive" {
			t.Errorf("%s: %v", base(dir), p)
		}
	}
	running(t, "steady")
}
