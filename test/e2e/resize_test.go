package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// readMemoryLimit prints the memory limit of a container from its cgroup.
const readMemoryLimit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) (reason, message string, is bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Reason, c.Message, c.Status == corev1.ConditionTrue
		}
	}
	return "", "", false
}

func TestResizeInPlace(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		apply := func(cpu, memory string) {
			s.Pod("size", `
				terminationGracePeriodSeconds: 1
				volumes: [{name: d, downwardAPI: {items: [{path: limit,
				  resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}]}}]
				containers:
				`+sh("c", "volumeMounts: [{name: d, mountPath: /d}], "+
				"resources: {requests: {cpu: "+cpu+", memory: 16Mi}, limits: {memory: "+memory+"}}", "sleep 1000"))
		}
		resizedTo := func(memory string) func(*corev1.Pod) bool {
			return func(p *corev1.Pod) bool {
				_, _, resizing := conditionOf(p, corev1.PodResizeInProgress)
				r := status(p, "c").Resources
				return r != nil && r.Limits.Memory().String() == memory && !resizing
			}
		}
		apply("50m", "64Mi")
		first := s.Running("size")
		id := status(first, "c").ContainerID

		apply("100m", "128Mi")
		p := s.Wait("size", "resized", resizedTo("128Mi"))
		if c := status(p, "c"); p.UID != first.UID || c.ContainerID != id || c.RestartCount != 0 ||
			p.Status.ObservedGeneration < 2 ||
			c.AllocatedResources.Cpu().String() != "100m" {
			t.Errorf("after growth: got UID %s, want %s: %s, allocated %v, generation %d", p.UID, first.UID, brief(p),
				c.AllocatedResources, p.Status.ObservedGeneration)
		}
		if got := strings.TrimSpace(s.Exec("size", "c", "sh", "-c", readMemoryLimit)); got != "134217728" {
			t.Errorf("got memory limit %s", got)
		}
		waitFor(t, "the downward API volume to be updated", func() bool {
			return strings.TrimSpace(s.Exec("size", "c", "cat", "/d/limit")) == "128"
		})
		s.Event("size", "ResizeStarted: Pod resize started: ")
		s.Event("size", "ResizeCompleted: Pod resize completed: ")

		apply("100m", "32Mi")
		s.Wait("size", "shrunk", resizedTo("32Mi"))
		if got := strings.TrimSpace(s.Exec("size", "c", "sh", "-c", readMemoryLimit)); got != "33554432" {
			t.Errorf("got memory limit %s", got)
		}

		// A resize beyond the node's capacity is infeasible. The container keeps running.
		apply("1000", "32Mi")
		p = s.Wait("size", "pending", func(p *corev1.Pod) bool {
			_, _, is := conditionOf(p, corev1.PodResizePending)
			return is
		})
		if reason, message, _ := conditionOf(p, corev1.PodResizePending); reason != corev1.PodReasonInfeasible ||
			!strings.Contains(message, "cpu") {
			t.Errorf("pending: %s %s", reason, message)
		}
		if c := status(p, "c"); c.ContainerID != id || c.AllocatedResources.Cpu().String() != "100m" {
			t.Errorf("infeasible: %s, allocated %v", brief(p), c.AllocatedResources)
		}
		s.Event("size", "ResizeInfeasible: Pod resize Infeasible: ")
		apply("100m", "48Mi")
		p = s.Wait("size", "resized again", resizedTo("48Mi"))
		if _, _, is := conditionOf(p, corev1.PodResizePending); is || status(p, "c").ContainerID != id {
			t.Errorf("after a feasible resize: %s %+v", brief(p), p.Status.Conditions)
		}

		// A change of the QoS class replaces the pod.
		s.Pod("size", "terminationGracePeriodSeconds: 1\ncontainers:\n"+sh("c", "", "sleep 1000"))
		s.Wait("size", "replaced", func(p *corev1.Pod) bool {
			return p.UID != first.UID && p.Status.Phase == corev1.PodRunning
		})
	})
}

// TestDeferredResizeCompletesWhenResourcesAreFree requests resources that another pod uses. The resize
// completes when that pod is deleted, also after an agent restart.
func TestDeferredResizeCompletesWhenResourcesAreFree(t *testing.T) {
	forEachNewNode(t, nodeOptions{}, func(t *testing.T, s *Namespace) {
		apply := func(name string, milli int) {
			s.Pod(name, "hostNetwork: true\nterminationGracePeriodSeconds: 1\ncontainers:\n"+
				sh("c", fmt.Sprintf("resources: {requests: {cpu: %dm}}", milli), "sleep 1000"))
		}
		apply("big", 1000*runtime.NumCPU()-400)
		s.Running("big")
		apply("small", 100)
		first := s.Running("small")
		deferred := func(p *corev1.Pod) bool {
			reason, message, pending := conditionOf(p, corev1.PodResizePending)
			c := status(p, "c")
			return pending && reason == corev1.PodReasonDeferred && strings.Contains(message, "cpu") &&
				c.AllocatedResources.Cpu().String() == "100m"
		}
		apply("small", 600)
		s.Wait("small", "deferred", deferred)
		s.Event("small", "ResizeDeferred: Pod resize Deferred: ")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Wait("small", "still deferred", deferred)
		s.Remove("big")
		p := s.Wait("small", "resized", func(p *corev1.Pod) bool {
			_, _, pending := conditionOf(p, corev1.PodResizePending)
			_, _, resizing := conditionOf(p, corev1.PodResizeInProgress)
			return !pending && !resizing && status(p, "c").Resources.Requests.Cpu().String() == "600m"
		})
		if old, updated := status(first, "c"), status(p, "c"); p.UID != first.UID ||
			updated.ContainerID != old.ContainerID ||
			updated.RestartCount != 0 ||
			updated.AllocatedResources.Cpu().String() != "600m" {
			t.Errorf("after the resize: %s, allocated %v, before: %s", brief(p), updated.AllocatedResources,
				brief(first))
		}
		s.Event("small", "ResizeCompleted: Pod resize completed: ")
	})
}

func TestResizeByRestartAndBelowUsage(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		apply := func(memory string) {
			s.Pod("again", "terminationGracePeriodSeconds: 1\ncontainers:\n"+
				sh("c", "resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: "+
					"{requests: {memory: 16Mi}, limits: {memory: "+memory+"}}", "sleep 1000"))
			s.Pod("full", "terminationGracePeriodSeconds: 1\ncontainers:\n"+
				sh("c", "resources: {requests: {memory: 8Mi}, limits: {memory: "+memory+"}}",
					"dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2>/dev/null; echo --end--; sleep 1000"))
		}
		apply("64Mi")
		s.Running("again")
		s.WaitOutput("full", "c")
		id := status(s.Get("full"), "c").ContainerID
		apply("24Mi")
		p := s.Wait("again", "restarted", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount == 1 && status(p, "c").State.Running != nil
		})
		if got := strings.TrimSpace(s.Exec("again", "c", "sh", "-c", readMemoryLimit)); got != "25165824" ||
			status(p, "c").Resources.Limits.Memory().String() != "24Mi" {
			t.Errorf("restarted: got memory limit %s: %s", got, brief(p))
		}
		s.Event("again", "Killing: Container c resize requires restart")

		p = s.Wait("full", "reporting a failed resize", func(p *corev1.Pod) bool {
			reason, _, _ := conditionOf(p, corev1.PodResizeInProgress)
			return reason == corev1.PodReasonError
		})
		if _, message, _ := conditionOf(p, corev1.PodResizeInProgress); !strings.Contains(message,
			"below current usage") || status(p, "c").ContainerID != id ||
			status(p, "c").Resources.Limits.Memory().String() != "64Mi" {
			t.Errorf("failed resize: %q %s", message, brief(p))
		}
		apply("64Mi")
		p = s.Wait("full", "restored", func(p *corev1.Pod) bool {
			_, _, is := conditionOf(p, corev1.PodResizeInProgress)
			return !is
		})
		if status(p, "c").ContainerID != id || status(p, "c").RestartCount != 0 {
			t.Errorf("restored: %s", brief(p))
		}
		s.Wait("again", "restarted for the second time", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount == 2 && status(p, "c").State.Running != nil
		})
		if out := s.Berth("events", "-n", s.ns); strings.Contains(out, "Back-off restarting") {
			t.Errorf("back-off for a restart that a resize requires:\n%s", out)
		}
	})
}

// TestResizeOfPodAndSidecar resizes spec.resources and a sidecar in place, separately and together.
func TestResizeOfPodAndSidecar(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		apply := func(pod, car string) {
			s.Pod("whole", `
				terminationGracePeriodSeconds: 1
				resources: {requests: {memory: 16Mi}, limits: {memory: `+pod+`}}
				initContainers:
				`+sh("car", "restartPolicy: Always, resources: {limits: {memory: "+car+"}, requests: {memory: 8Mi}}",
				"sleep 1000")+`
				containers:
				`+sh("c", "", "dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2>/dev/null; echo --end--; sleep 1000"))
		}
		resizedTo := func(pod, car string) func(*corev1.Pod) bool {
			return func(p *corev1.Pod) bool {
				_, _, resizing := conditionOf(p, corev1.PodResizeInProgress)
				whole, sidecar := p.Status.Resources, status(p, "car").Resources
				return !resizing && whole != nil && sidecar != nil && whole.Limits.Memory().String() == pod &&
					sidecar.Limits.Memory().String() == car
			}
		}
		apply("128Mi", "32Mi")
		s.WaitOutput("whole", "c")
		first := s.Running("whole")
		limits := func() (pod, car string) {
			t.Helper()
			dir := filepath.Join("/sys/fs/cgroup/memory", s.Host.CgroupRoot, "kubepods/burstable/pod"+string(first.UID))
			data, err := os.ReadFile(dir + "/memory.limit_in_bytes")
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(data)),
				strings.TrimSpace(s.Exec("whole", "car", "sh", "-c", readMemoryLimit))
		}
		checkNotRestarted := func(p *corev1.Pod) {
			t.Helper()
			for _, name := range []string{"c", "car"} {
				if was, is := status(first, name), status(p, name); p.UID != first.UID ||
					is.ContainerID != was.ContainerID || is.RestartCount != 0 {
					t.Errorf("container was replaced or restarted: %s, before: %s", brief(p), brief(first))
				}
			}
		}
		for _, c := range []struct{ pod, car, podBytes, carBytes string }{
			{"256Mi", "32Mi", "268435456", "33554432"},
			{"256Mi", "64Mi", "268435456", "67108864"},
			{"96Mi", "48Mi", "100663296", "50331648"},
		} {
			apply(c.pod, c.car)
			checkNotRestarted(s.Wait("whole", "resized to "+c.pod+", "+c.car, resizedTo(c.pod, c.car)))
			if pod, car := limits(); pod != c.podBytes || car != c.carBytes {
				t.Errorf("got memory limits %s and %s, want %s and %s", pod, car, c.podBytes, c.carBytes)
			}
		}
		apply("24Mi", "16Mi")
		p := s.Wait("whole", "reporting a failed resize", func(p *corev1.Pod) bool {
			reason, _, _ := conditionOf(p, corev1.PodResizeInProgress)
			return reason == corev1.PodReasonError
		})
		if _, message, _ := conditionOf(p, corev1.PodResizeInProgress); !strings.Contains(message,
			"below current usage") || p.Status.Resources.Limits.Memory().String() != "96Mi" {
			t.Errorf("failed resize: %q, %v", message, p.Status.Resources)
		}
		checkNotRestarted(p)
		apply("96Mi", "48Mi")
		checkNotRestarted(s.Wait("whole", "restored", resizedTo("96Mi", "48Mi")))
	})
}

// readCPULimits prints the CPU quota and weight of a container from its cgroup.
const readCPULimits = "cd /sys/fs/cgroup/cpu 2>/dev/null && cat cpu.cfs_quota_us cpu.shares || " +
	"cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.weight"

// TestPodLevelResources checks that pod-level resources apply to containers without limits, and that
// the cgroups follow a resize.
func TestPodLevelResources(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("hog", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\n"+
			"resources: {requests: {cpu: 50m}, limits: {cpu: 500m, memory: 32Mi}}\ncontainers:\n"+
			sh("hog", "", "exec dd if=/dev/zero of=/dev/shm/x bs=1M count=60")+
			sh("stays", "resources: {requests: {cpu: 10m}}", "sleep 1000"))
		p := s.Wait("hog", "out of memory", func(p *corev1.Pod) bool {
			return status(p, "hog").State.Terminated != nil
		})
		if x := status(p, "hog").State.Terminated; x.ExitCode != 137 {
			t.Errorf("above the pod's memory limit: got %+v, want exit code 137", x)
		}
		if r := p.Status.Resources; p.Status.QOSClass != corev1.PodQOSBurstable || r == nil ||
			r.Requests.Memory().String() != "32Mi" || r.Requests.Cpu().String() != "50m" {
			t.Errorf("QoS %s, resources %+v", p.Status.QOSClass, r)
		}
		apply := func(cpu, memory string) {
			s.Pod("whole", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\nresources: {requests: {cpu: "+
				"300m, memory: 32Mi}, limits: {cpu: "+cpu+", memory: "+memory+"}}\ncontainers:\n"+
				sh("stays", "resources: {requests: {cpu: 10m}}", "sleep 1000")+
				sh("no-resources", "", "sleep 1000")+sh("limited",
				"resources: {limits: {cpu: 200m, memory: 16Mi}, requests: {cpu: 200m, memory: 0}}", "sleep 1000"))
		}
		apply("500m", "32Mi")
		s.Running("whole")
		checkCgroupValues := func(what, name, memory, cpu string) {
			t.Helper()
			got := strings.Fields(s.Exec("whole", name, "sh", "-c", readMemoryLimit+"; "+readCPULimits))
			if want := strings.Fields(memory + " " + cpu); !slices.Equal(got, want) {
				t.Errorf("%s: cgroup of %s: got memory and CPU %v, want %v", what, name, got, want)
			}
		}
		checkCgroupValues("container with a CPU request has the pod's limits", "stays", "33554432", "50000 10")
		checkCgroupValues("container without resources has the pod's limits", "no-resources", "33554432", "50000 512")
		checkCgroupValues("container with limits has its own limits", "limited", "16777216", "20000 204")
		apply("300m", "48Mi")
		p = s.Wait("whole", "resized", func(p *corev1.Pod) bool {
			_, _, resizing := conditionOf(p, corev1.PodResizeInProgress)
			return !resizing && p.Status.Resources != nil && p.Status.Resources.Limits.Memory().String() == "48Mi"
		})
		checkCgroupValues("resized", "stays", "50331648", "30000 10")
		checkCgroupValues("resized", "no-resources", "50331648", "30000 307")
		checkCgroupValues("resized", "limited", "16777216", "20000 204")
		if k := status(p, "stays"); k.RestartCount != 0 || k.State.Running == nil {
			t.Errorf("resized: %s", brief(p))
		}
		apply("500m", "32Mi")
		s.Wait("whole", "restored", func(p *corev1.Pod) bool {
			_, _, resizing := conditionOf(p, corev1.PodResizeInProgress)
			return !resizing && p.Status.Resources != nil && p.Status.Resources.Limits.Memory().String() == "32Mi"
		})
		checkCgroupValues("restored", "no-resources", "33554432", "50000 512")
	})
}
