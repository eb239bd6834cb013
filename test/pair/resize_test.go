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
	pending    = `.status.conditions[?(@.type=="PodResizePending")]`
	inProgress = `.status.conditions[?(@.type=="PodResizeInProgress")].status`
)

// TestKubectlResizesPods increases and decreases resources of running pods with kubectl and checks
// the cgroups.
func TestKubectlResizesPods(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			p := start(t, pairOptions{Version: v})
			t.Run("up and down in place", func(t *testing.T) { p.in(t).resizeInPlace() })
			t.Run("adding resources", func(t *testing.T) { p.in(t).resizeAdds() })
			t.Run("pod-level resources", func(t *testing.T) { p.in(t).resizeWhole() })
			t.Run("deferred until resources are free", func(t *testing.T) { p.in(t).resizeDeferred() })
			t.Run("beyond the node's capacity", func(t *testing.T) { p.in(t).resizeInfeasible() })
		})
	}
}

// resize requests other resources of the pod's container or of the pod.
func (p *Pair) resize(name, spec string) {
	p.t.Helper()
	p.Kubectl(p.t, "patch", "pod", name, "--subresource=resize", "-p", `{"spec":`+spec+`}`)
}

func ofContainer(resources string) string {
	return `{"containers":[{"name":"c","resources":` + resources + `}]}`
}

// sized waits until the pod's resize is completed and the container's status has the resources:
// requests, then limits, CPU before memory.
func (p *Pair) sized(name, want string) {
	p.t.Helper()
	p.until(name+" to have "+want, func() string {
		const at = ".status.containerStatuses[0].resources."
		var has []string
		for _, path := range []string{at + "requests.cpu", at + "requests.memory", at + "limits.cpu", at + "limits.memory"} {
			if q := p.field("pod", name, path); q != "" {
				has = append(has, q)
			}
		}
		if got := strings.Join(has, " "); got != want {
			return "got " + got
		}
		if p.field("pod", name, pending) != "" || p.field("pod", name, inProgress) != "" {
			return "resize in progress: " + p.field("pod", name, ".status.conditions")
		}
		return ""
	})
}

// kernel checks the cgroup limits of a pod or of its container.
type kernel struct{ Shares, Quota, Memory string }

// kernelOf reads the cgroup of a pod or, if container is set, of this container ID.
func (p *Pair) kernelOf(uid, container string) (k kernel) {
	p.t.Helper()
	read := func(controller, file string) string {
		dir := filepath.Join("/sys/fs/cgroup", controller, p.Host.CgroupRoot, "kubepods/burstable/pod"+uid, container)
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			p.t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	return kernel{read("cpu", "cpu.shares"), read("cpu", "cpu.cfs_quota_us"), read("memory", "memory.limit_in_bytes")}
}

// same is a container that is not restarted while the pod is resized.
type same struct{ uid, id string }

func (p *Pair) runs(name string) same {
	p.t.Helper()
	p.waitForField("pod", name, ready, "True")
	return same{p.field("pod", name, ".metadata.uid"), p.field("pod", name, idOf)}
}

// still checks that the container has not been restarted.
func (p *Pair) still(name string, was same) {
	p.t.Helper()
	if now := p.field("pod", name, idOf); now != was.id {
		p.t.Errorf("%s: container %s was replaced by %s", name, was.id, now)
	}
	if n := p.field("pod", name, restarts); n != "0" {
		p.t.Errorf("%s: %s restarts", name, n)
	}
}

// container returns the container ID in the runtime.
func (s same) container() string { return s.id[strings.LastIndex(s.id, "/")+1:] }

func (p *Pair) resizeInPlace() {
	t := p.t
	p.Apply(t, p.pod("size", "resources: {requests: {cpu: 100m, memory: 16Mi}, limits: {cpu: 200m, memory: 64Mi}}",
		"sleep"))
	was := p.runs("size")
	is := func(what, status string, own, pod kernel) {
		t.Helper()
		p.sized("size", status)
		p.still("size", was)
		if got := p.kernelOf(was.uid, was.container()); got != own {
			t.Errorf("%s: got container resources %+v, want %+v", what, got, own)
		}
		if got := p.kernelOf(was.uid, ""); got != pod {
			t.Errorf("%s: got pod resources %+v, want %+v", what, got, pod)
		}
	}
	both := func(what, status string, k kernel) { t.Helper(); is(what, status, k, k) }
	both("made", "100m 16Mi 200m 64Mi", kernel{"102", "20000", "67108864"})
	p.resize("size", ofContainer(`{"requests":{"cpu":"250m","memory":"32Mi"},"limits":{"cpu":"500m","memory":"128Mi"}}`))
	both("up", "250m 32Mi 500m 128Mi", kernel{"256", "50000", "134217728"})
	p.resize("size", ofContainer(`{"requests":{"cpu":"50m","memory":"16Mi"},"limits":{"cpu":"100m","memory":"32Mi"}}`))
	both("down", "50m 16Mi 100m 32Mi", kernel{"51", "10000", "33554432"})
	p.edit("size", "s/memory: 32Mi/memory: 48Mi/")
	both("edited", "50m 16Mi 100m 48Mi", kernel{"51", "10000", "50331648"})
	if seen, now := p.field("pod", "size", ".status.observedGeneration"), p.field("pod", "size",
		".metadata.generation"); seen != now || now != "4" {
		t.Errorf("generation %s, observed %s", now, seen)
	}
	p.until("the events", func() string {
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

// edit runs kubectl edit with sed as the editor.
func (p *Pair) edit(name, script string) {
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

func (p *Pair) resizeAdds() {
	t := p.t
	p.Apply(t, p.pod("adds", "resources: {requests: {memory: 16Mi}}", "sleep"))
	was := p.runs("adds")
	if k := p.kernelOf(was.uid, was.container()); k.Quota != "-1" || len(k.Memory) < len("9223372036854771712") {
		t.Errorf("without limits: got %+v", k)
	}
	p.resize("adds", ofContainer(`{"requests":{"cpu":"20m"},"limits":{"cpu":"300m","memory":"96Mi"}}`))
	p.sized("adds", "20m 16Mi 300m 96Mi")
	p.still("adds", was)
	for _, id := range []string{was.container(), ""} {
		if got, want := p.kernelOf(was.uid, id), (kernel{"20", "30000", "100663296"}); got != want {
			t.Errorf("cgroup %q: got %+v, want %+v", id, got, want)
		}
	}
}

func (p *Pair) resizeWhole() {
	t := p.t
	manifest := p.pod("whole", "", "sleep") + "  resources: {requests: {cpu: 20m, memory: 16Mi}, limits: {memory: 64Mi}}\n"
	p.Apply(t, manifest)
	was := p.runs("whole")
	p.resize("whole", `{"resources":{"requests":{"cpu":"40m"},"limits":{"memory":"96Mi","cpu":"300m"}}}`)
	p.waitForField("pod", "whole", ".status.resources.limits.memory", "96Mi")
	p.waitForField("pod", "whole", ".status.resources.limits.cpu", "300m")
	p.waitForField("pod", "whole", inProgress, "")
	p.still("whole", was)
	if got, want := p.kernelOf(was.uid, ""), (kernel{"40", "30000", "100663296"}); got != want {
		t.Errorf("got pod resources %+v, want %+v", got, want)
	}
}

// share returns a fraction of the node's CPU.
func (p *Pair) share(percent int64) string {
	p.t.Helper()
	cpu, err := resource.ParseQuantity(p.field("node", p.Node, ".status.allocatable.cpu"))
	if err != nil {
		p.t.Fatal(err)
	}
	return resource.NewMilliQuantity(cpu.MilliValue()*percent/100, resource.DecimalSI).String()
}

func (p *Pair) resizeDeferred() {
	t := p.t
	requests := func(cpu string) string { return "resources: {requests: {cpu: " + cpu + ", memory: 8Mi}}" }
	few, most := p.share(10), p.share(60)
	p.Apply(t, p.pod("big", requests(most), "sleep"))
	p.Apply(t, p.pod("small", requests(few), "sleep"))
	was := p.runs("small")
	p.runs("big")
	p.resize("small", ofContainer(`{"requests":{"cpu":"`+most+`"}}`))
	p.waitForField("pod", "small", pending+".reason", "Deferred")
	if message := p.field("pod", "small", pending+".message"); !strings.Contains(message, "cpu") {
		t.Errorf("got message %q", message)
	}
	p.waitForField("pod", "small", ".status.containerStatuses[0].allocatedResources.cpu", few)
	p.Kubectl(t, "delete", "pod", "big", "--timeout=60s")
	p.sized("small", most+" 8Mi")
	p.waitForField("pod", "small", ".status.containerStatuses[0].allocatedResources.cpu", most)
	p.still("small", was)
	p.Kubectl(t, "delete", "pod", "small", "--timeout=60s")
}

func (p *Pair) resizeInfeasible() {
	t := p.t
	p.Apply(t, p.pod("vast", "resources: {requests: {cpu: 20m, memory: 8Mi}}", "sleep"))
	was := p.runs("vast")
	p.resize("vast", ofContainer(`{"requests":{"cpu":"1000"}}`))
	p.waitForField("pod", "vast", pending+".reason", "Infeasible")
	p.waitForField("pod", "vast", ".status.containerStatuses[0].allocatedResources.cpu", "20m")
	p.resize("vast", ofContainer(`{"requests":{"cpu":"30m"}}`))
	p.sized("vast", "30m 8Mi")
	p.still("vast", was)
	if image := p.field("pod", "vast", ".spec.containers[0].image"); image != images.TestboxRef {
		t.Errorf("got image %s", image)
	}
}
