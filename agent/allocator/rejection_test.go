package allocator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/plan"
)

// fromAPIServer marks the pod as assigned by an API server.
func fromAPIServer(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	return pod
}

func (l *testAllocator) expectVerdict(t *testing.T, pod *corev1.Pod, state plan.VerdictState, reason string) {
	t.Helper()
	if v, _ := l.lastVerdict(pod); v.State != state || v.Reason != reason {
		t.Errorf("%s: %+v, want %v %s", pod.Name, v, state, reason)
	}
}

// TestAllocatorRejectsAPIServerPodThatDoesNotFit compares pods from an API server, which a
// controller replaces, with static pods.
func TestAllocatorRejectsAPIServerPodThatDoesNotFit(t *testing.T) {
	asks := func(name corev1.ResourceName, q string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{name: resource.MustParse(q)}
		}
	}
	for _, c := range []struct {
		name, reason string
		with         func(*corev1.Pod)
		file, server plan.VerdictState
	}{
		{"too little CPU is left", "OutOfcpu", asks("cpu", "2"), plan.Wait, plan.Rejected},
		{"too little memory is left", "OutOfmemory", asks("memory", "1Ti"), plan.Wait, plan.Rejected},
		{"too little disk is left", "OutOfephemeral-storage", asks("ephemeral-storage", "10Gi"), plan.Wait,
			plan.Rejected},
		{"all devices are taken", "OutOfexample.com/gpu", asks("example.com/gpu", "1"), plan.Wait, plan.Rejected},
		{"more devices than the node has", "OutOfexample.com/gpu", asks("example.com/gpu", "9"), plan.Wait,
			plan.Rejected},
		{"the device is not registered yet", "OutOfexample.com/nic", asks("example.com/nic", "1"), plan.Wait,
			plan.Wait},
		{"a port is taken", "NodePorts", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80,
				Protocol: corev1.ProtocolTCP}}
		}, plan.Wait, plan.Rejected},
		{"more than the capacity of the node", "OutOfcpu", asks("cpu", "5"), plan.Rejected, plan.Rejected},
		{"the pod is bound to another node", "NodeName", func(p *corev1.Pod) {
			p.Spec.NodeName = "other"
		}, plan.Rejected,
			plan.Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := nodeOf("4", "10")
			node.Allocatable["ephemeral-storage"] = resource.MustParse("10Gi")
			node.Allocatable["example.com/gpu"] = resource.MustParse("1")
			node.Allocatable["example.com/nic"] = resource.MustParse("0")
			runAllocator(t, Config{Node: node, StartSlots: 10}, func(t *testing.T, l *testAllocator) {
				in := podWithCPU("in", "3")
				for name, q := range map[corev1.ResourceName]string{"memory": "1Gi", "ephemeral-storage": "1Gi",
					"example.com/gpu": "1"} {
					in.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(q)
				}
				in.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80,
					Protocol: corev1.ProtocolTCP}}
				l.submit(in, false)
				l.expectVerdict(t, in, plan.Admitted, "")
				file, server := podOf("file", "a"), fromAPIServer(podOf("server", "a"))
				c.with(file)
				c.with(server)
				l.submit(file, false)
				l.submit(server, false)
				l.expectVerdict(t, file, c.file, c.reason)
				l.expectVerdict(t, server, c.server, c.reason)
			})
		})
	}
}

func TestAllocatorRejectsAPIServerPodAboveMaxPods(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "1"), StartSlots: 10}, func(t *testing.T, l *testAllocator) {
		l.submit(podOf("in", "a"), false)
		file, server := podOf("file", "a"), fromAPIServer(podOf("server", "a"))
		l.submit(file, false)
		l.submit(server, false)
		l.expectVerdict(t, file, plan.Wait, "OutOfpods")
		l.expectVerdict(t, server, plan.Rejected, "OutOfpods")
	})
}

// TestPodWaitsForTerminatingPods covers a scheduler that assigns the resources of a deleted pod
// while the pod still terminates on the node.
func TestPodWaitsForTerminatingPods(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *testAllocator) {
		old, stays := fromAPIServer(podWithCPU("old", "2")), fromAPIServer(podWithCPU("stays", "1"))
		l.submit(old, false)
		l.submit(stays, false)
		l.MarkTerminating(old.UID)
		l.MarkTerminating("unknown")
		next, tooMuch := fromAPIServer(podWithCPU("next", "3")), fromAPIServer(podWithCPU("too-much", "3500m"))
		l.submit(next, false)
		l.expectVerdict(t, next, plan.Wait, "OutOfcpu")
		l.submit(tooMuch, false) // in addition to the remaining pod
		l.expectVerdict(t, tooMuch, plan.Rejected, "OutOfcpu")
		if v, _ := l.lastVerdict(tooMuch); !strings.HasSuffix(v.Message,
			"cpu, requested: 3500, used: 3000, capacity: 4000") {
			t.Errorf("message %q", v.Message)
		}
		l.Release(old.UID)
		l.expectVerdict(t, next, plan.Admitted, "")
		late := fromAPIServer(podWithCPU("late", "1"))
		l.submit(late, false)
		l.expectVerdict(t, late, plan.Rejected, "OutOfcpu")
	})
}

// TestWaitingPodRejectedWhenTerminationReverted covers a restart, after which restored pods count
// as terminating until they are confirmed.
func TestWaitingPodRejectedWhenTerminationReverted(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *testAllocator) {
		old, next := fromAPIServer(podWithCPU("old", "3")), fromAPIServer(podWithCPU("next", "2"))
		l.submit(old, true)
		l.MarkTerminating(old.UID)
		l.submit(next, false)
		l.expectVerdict(t, next, plan.Wait, "OutOfcpu")
		l.submit(old, true)
		l.expectVerdict(t, next, plan.Rejected, "OutOfcpu")
		if c, _ := l.Snapshot(t.Context()); c.Admitted != 1 || c.Waiting != 0 {
			t.Errorf("%+v", c)
		}
	})
}
