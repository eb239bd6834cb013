package pair

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/test/hosts"
	"berth/test/images"
)

const (
	resizePending    = `.status.conditions[?(@.type=="PodResizePending")]`
	resizeInProgress = `.status.conditions[?(@.type=="PodResizeInProgress")].status`
)

// TestKubectlResizesPods changes the resources of running pods with kubectl and checks their cgroups.
func TestKubectlResizesPods(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			p := startPair(t, pairOptions{Version: v})
			t.Run("increased and decreased in place", func(t *testing.T) { p.forSubtest(t).testResizeInPlace() })
			t.Run("requests and limits added", func(t *testing.T) { p.forSubtest(t).testAddedResources() })
			t.Run("pod-level resources", func(t *testing.T) { p.forSubtest(t).testPodLevelResize() })
			t.Run("deferred until resources are free", func(t *testing.T) { p.forSubtest(t).testDeferredResize() })
			t.Run("beyond the node's capacity", func(t *testing.T) { p.forSubtest(t).testInfeasibleResize() })
		})
	}
}

// resize patches the spec through the resize subresource.
func (p *Pair) resize(name, spec string) {
	p.t.Helper()
	p.Kubectl(p.t, "patch", "pod", name, "--subresource=resize", "-p", `{"spec":`+spec+`}`)
}

// containerPatch returns a patch of the spec with the resources of the container.
func containerPatch(resources string) string {
	return `{"containers":[{"name":"c","resources":` + resources + `}]}`
}

// waitForResize waits until the resize is complete and the container status has the resources want:
// requests.cpu, requests.memory, limits.cpu and limits.memory, without those that are unset.
func (p *Pair) waitForResize(name, want string) {
	p.t.Helper()
	p.waitUntil(name+" to have "+want, func() string {
		const at = ".status.containerStatuses[0].resources."
		var got []string
		for _, path := range []string{at + "requests.cpu", at + "requests.memory", at + "limits.cpu",
			at + "limits.memory"} {
			if q := p.field("pod", name, path); q != "" {
				got = append(got, q)
			}
		}
		if text := strings.Join(got, " "); text != want {
			return "got " + text
		}
		if p.field("pod", name, resizePending) != "" || p.field("pod", name, resizeInProgress) != "" {
			return "resize in progress: " + p.field("pod", name, ".status.conditions")
		}
		return ""
	})
}

// cgroupLimits are the limits in the cgroup of a pod or of its container.
type cgroupLimits struct{ Shares, Quota, Memory string }

// readCgroup reads the cgroup of a pod, or of a container unless the container ID is empty.
func (p *Pair) readCgroup(uid, container string) (k cgroupLimits) {
	p.t.Helper()
	read := func(controller, file string) string {
		dir := filepath.Join("/sys/fs/cgroup", controller, p.Host.CgroupRoot, "kubepods/burstable/pod"+uid, container)
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			p.t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	return cgroupLimits{
		read("cpu", "cpu.shares"), read("cpu", "cpu.cfs_quota_us"), read("memory", "memory.limit_in_bytes"),
	}
}

// podInstance identifies a pod and its container, to check that a resize does not restart it.
type podInstance struct{ uid, id string }

// waitForInstance waits until the pod is ready.
func (p *Pair) waitForInstance(name string) podInstance {
	p.t.Helper()
	p.waitForField("pod", name, readyStatus, "True")
	return podInstance{p.field("pod", name, ".metadata.uid"), p.field("pod", name, containerID)}
}

// checkNotRestarted checks that the pod still has the same container without restarts.
func (p *Pair) checkNotRestarted(name string, instance podInstance) {
	p.t.Helper()
	if now := p.field("pod", name, containerID); now != instance.id {
		p.t.Errorf("%s: container %s was replaced by %s", name, instance.id, now)
	}
	if n := p.field("pod", name, restartCount); n != "0" {
		p.t.Errorf("%s: got %s restarts, want 0", name, n)
	}
}

// container returns the container ID in the runtime.
func (s podInstance) container() string { return s.id[strings.LastIndex(s.id, "/")+1:] }

// testResizeInPlace changes requests and limits of a running container and of its pod.
func (p *Pair) testResizeInPlace() {
	t := p.t
	p.Apply(t, p.pod("size", "resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}",
		"sleep"))
	instance := p.waitForInstance("size")
	check := func(what, status string, container, pod cgroupLimits) {
		t.Helper()
		p.waitForResize("size", status)
		p.checkNotRestarted("size", instance)
		if got := p.readCgroup(instance.uid, instance.container()); got != container {
			t.Errorf("%s: got container resources %+v, want %+v", what, got, container)
		}
		if got := p.readCgroup(instance.uid, ""); got != pod {
			t.Errorf("%s: got pod resources %+v, want %+v", what, got, pod)
		}
	}
	checkBoth := func(what, status string, k cgroupLimits) { t.Helper(); check(what, status, k, k) }
	checkBoth("created", "100m 16Mi 200m 64Mi", cgroupLimits{"102", "20000", "67108864"})
	p.resize("size", containerPatch(
		`{"requests":{"cpu":"250m","memory":"32Mi"},"limits":{"cpu":"500m","memory":"128Mi"}}`))
	checkBoth("increased", "250m 32Mi 500m 128Mi", cgroupLimits{"256", "50000", "134217728"})
	p.resize("size", containerPatch(
		`{"requests":{"cpu":"50m","memory":"16Mi"},"limits":{"cpu":"100m","memory":"32Mi"}}`))
	checkBoth("decreased", "50m 16Mi 100m 32Mi", cgroupLimits{"51", "10000", "33554432"})
	p.kubectlEdit("size", "s/memory: 32Mi/memory: 48Mi/")
	checkBoth("edited", "50m 16Mi 100m 48Mi", cgroupLimits{"51", "10000", "50331648"})
	if observed, generation := p.field("pod", "size", ".status.observedGeneration"), p.field("pod", "size",
		".metadata.generation"); observed != generation || generation != "4" {
		t.Errorf("got generation %s, observedGeneration %s, want 4", generation, observed)
	}
	p.waitUntil("the resize events", func() string {
		out := p.Kubectl(t, "describe", "pod", "size")
		for _, want := range []string{"ResizeStarted", "ResizeCompleted"} {
			if !strings.Contains(out, want) {
				return out
			}
		}
		return ""
	})
	out, err := p.TryKubectl(t, "", "patch", "pod", "size", "--subresource=resize", "--type=json", "-p",
		`[{"op":"remove","path":"/spec/containers/0/resources/limits/memory"}]`)
	if err == nil || !strings.Contains(out, "resource limits cannot be removed") {
		t.Errorf("removal of a limit: %v %s", err, out)
	}
}

// kubectlEdit runs kubectl edit with sed as the editor.
func (p *Pair) kubectlEdit(name, script string) {
	p.t.Helper()
	program, err := hosts.Kubectl()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), program, "--kubeconfig", p.Kubeconfig, "edit", "pod", name,
		"--subresource=resize")
	cmd.Env = append(os.Environ(), "HOME="+p.t.TempDir(), fmt.Sprintf("KUBE_EDITOR=sed -i '%s'", script))
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("kubectl edit: %v\n%s", err, out)
	}
}

// testAddedResources adds requests and limits to a container without limits.
func (p *Pair) testAddedResources() {
	t := p.t
	p.Apply(t, p.pod("adds", "resources: {requests: {memory: 16Mi}}", "sleep"))
	instance := p.waitForInstance("adds")
	if k := p.readCgroup(instance.uid, instance.container()); k.Quota != "-1" ||
		len(k.Memory) < len("9223372036854771712") {
		t.Errorf("cgroup without limits: got %+v", k)
	}
	p.resize("adds", containerPatch(`{"requests":{"cpu":"20m"},"limits":{"cpu":"300m","memory":"96Mi"}}`))
	p.waitForResize("adds", "20m 16Mi 300m 96Mi")
	p.checkNotRestarted("adds", instance)
	for _, id := range []string{instance.container(), ""} {
		if got, want := p.readCgroup(instance.uid, id), (cgroupLimits{"20", "30000", "100663296"}); got != want {
			t.Errorf("cgroup %q: got %+v, want %+v", id, got, want)
		}
	}
}

// testPodLevelResize changes pod-level resources.
func (p *Pair) testPodLevelResize() {
	t := p.t
	manifest := p.pod("whole", "", "sleep") + "  resources: {requests: {cpu: 20m, memory: 16Mi}, limits: " +
		"{memory: 64Mi}}\n"
	p.Apply(t, manifest)
	instance := p.waitForInstance("whole")
	p.resize("whole", `{"resources":{"requests":{"cpu":"40m"},"limits":{"memory":"96Mi","cpu":"300m"}}}`)
	p.waitForField("pod", "whole", ".status.resources.limits.memory", "96Mi")
	p.waitForField("pod", "whole", ".status.resources.limits.cpu", "300m")
	p.waitForField("pod", "whole", resizeInProgress, "")
	p.checkNotRestarted("whole", instance)
	if got, want := p.readCgroup(instance.uid, ""), (cgroupLimits{"40", "30000", "100663296"}); got != want {
		t.Errorf("got pod resources %+v, want %+v", got, want)
	}
}

// cpuShare returns a percentage of the allocatable CPU of the node.
func (p *Pair) cpuShare(percent int64) string {
	p.t.Helper()
	cpu, err := resource.ParseQuantity(p.field("node", p.Node, ".status.allocatable.cpu"))
	if err != nil {
		p.t.Fatal(err)
	}
	return resource.NewMilliQuantity(cpu.MilliValue()*percent/100, resource.DecimalSI).String()
}

// testDeferredResize requests more CPU than is free. The resize is completed after another pod is deleted.
func (p *Pair) testDeferredResize() {
	t := p.t
	requests := func(cpu string) string { return "resources: {requests: {cpu: " + cpu + ", memory: 8Mi}}" }
	smallRequest, largeRequest := p.cpuShare(10), p.cpuShare(60)
	p.Apply(t, p.pod("big", requests(largeRequest), "sleep"))
	p.Apply(t, p.pod("small", requests(smallRequest), "sleep"))
	instance := p.waitForInstance("small")
	p.waitForInstance("big")
	p.resize("small", containerPatch(`{"requests":{"cpu":"`+largeRequest+`"}}`))
	p.waitForField("pod", "small", resizePending+".reason", "Deferred")
	if message := p.field("pod", "small", resizePending+".message"); !strings.Contains(message, "cpu") {
		t.Errorf("got message %q", message)
	}
	p.waitForField("pod", "small", ".status.containerStatuses[0].allocatedResources.cpu", smallRequest)
	p.Kubectl(t, "delete", "pod", "big", "--timeout=4m")
	p.waitForResize("small", largeRequest+" 8Mi")
	p.waitForField("pod", "small", ".status.containerStatuses[0].allocatedResources.cpu", largeRequest)
	p.checkNotRestarted("small", instance)
	p.Kubectl(t, "delete", "pod", "small", "--timeout=4m")
}

// testInfeasibleResize requests more CPU than the node has. A later resize with less CPU succeeds.
func (p *Pair) testInfeasibleResize() {
	t := p.t
	p.Apply(t, p.pod("vast", "resources: {requests: {cpu: 20m, memory: 8Mi}}", "sleep"))
	instance := p.waitForInstance("vast")
	p.resize("vast", containerPatch(`{"requests":{"cpu":"1000"}}`))
	p.waitForField("pod", "vast", resizePending+".reason", "Infeasible")
	p.waitForField("pod", "vast", ".status.containerStatuses[0].allocatedResources.cpu", "20m")
	p.resize("vast", containerPatch(`{"requests":{"cpu":"30m"}}`))
	p.waitForResize("vast", "30m 8Mi")
	p.checkNotRestarted("vast", instance)
	if image := p.field("pod", "vast", ".spec.containers[0].image"); image != images.TestboxRef {
		t.Errorf("got image %s", image)
	}
}
