package allocator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/plan"
)

// assigned has a server have assigned the pod.
func assigned(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	return pod
}

func (l *lobby) is(t *testing.T, pod *corev1.Pod, state plan.VerdictState, reason string) {
	t.Helper()
	if v, _ := l.last(pod); v.State != state || v.Reason != reason {
		t.Errorf("%s: %+v, want %v %s", pod.Name, v, state, reason)
	}
}

// TestAPodOfAServerThatDoesNotFitIsRejected: its controller has another made;
// nobody would replace a file's.
func TestAPodOfAServerThatDoesNotFitIsRejected(t *testing.T) {
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
		{"too little disk is left", "OutOfephemeral-storage", asks("ephemeral-storage", "10Gi"), plan.Wait, plan.Rejected},
		{"all devices are taken", "OutOfexample.com/gpu", asks("example.com/gpu", "1"), plan.Wait, plan.Rejected},
		{"it wants more devices than there are", "OutOfexample.com/gpu", asks("example.com/gpu", "9"), plan.Wait, plan.Rejected},
		{"the device is not registered yet", "OutOfexample.com/nic", asks("example.com/nic", "1"), plan.Wait, plan.Wait},
		{"a port is taken", "NodePorts", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
		}, plan.Wait, plan.Rejected},
		{"the node never has so much", "OutOfcpu", asks("cpu", "5"), plan.Rejected, plan.Rejected},
		{"it is for another node", "NodeName", func(p *corev1.Pod) { p.Spec.NodeName = "other" }, plan.Rejected, plan.Rejected},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := nodeOf("4", "10")
			node.Allocatable["ephemeral-storage"] = resource.MustParse("10Gi")
			node.Allocatable["example.com/gpu"] = resource.MustParse("1")
			node.Allocatable["example.com/nic"] = resource.MustParse("0")
			inRoom(t, Config{Node: node, StartSlots: 10}, func(t *testing.T, l *lobby) {
				in := needs("in", "3")
				for name, q := range map[corev1.ResourceName]string{"memory": "1Gi", "ephemeral-storage": "1Gi", "example.com/gpu": "1"} {
					in.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(q)
				}
				in.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
				l.ask(in, false)
				l.is(t, in, plan.Admitted, "")
				file, server := podOf("file", "a"), assigned(podOf("server", "a"))
				c.with(file)
				c.with(server)
				l.ask(file, false)
				l.ask(server, false)
				l.is(t, file, c.file, c.reason)
				l.is(t, server, c.server, c.reason)
			})
		})
	}
}

func TestAPodOfAServerWhenThereAreAsManyPodsAsMayBe(t *testing.T) {
	inRoom(t, Config{Node: nodeOf("4", "1"), StartSlots: 10}, func(t *testing.T, l *lobby) {
		l.ask(podOf("in", "a"), false)
		file, server := podOf("file", "a"), assigned(podOf("server", "a"))
		l.ask(file, false)
		l.ask(server, false)
		l.is(t, file, plan.Wait, "OutOfpods")
		l.is(t, server, plan.Rejected, "OutOfpods")
	})
}

// TestNobodyIsRejectedForRoomThatComesFree: the server gives a pod's room to
// another as soon as its object is gone; here it may still be ending.
func TestNobodyIsRejectedForRoomThatComesFree(t *testing.T) {
	inRoom(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *lobby) {
		old, stays := assigned(needs("old", "2")), assigned(needs("stays", "1"))
		l.ask(old, false)
		l.ask(stays, false)
		l.MarkTerminating(old.UID)
		l.MarkTerminating("nobody")
		next, tooMuch := assigned(needs("next", "3")), assigned(needs("too-much", "3500m"))
		l.ask(next, false)
		l.is(t, next, plan.Wait, "OutOfcpu")
		l.ask(tooMuch, false) // beside the one that stays
		l.is(t, tooMuch, plan.Rejected, "OutOfcpu")
		if v, _ := l.last(tooMuch); !strings.HasSuffix(v.Message, "cpu, requested: 3500, used: 3000, capacity: 4000") {
			t.Errorf("it is told %q", v.Message)
		}
		l.Release(old.UID)
		l.is(t, next, plan.Admitted, "")
		late := assigned(needs("late", "1"))
		l.ask(late, false)
		l.is(t, late, plan.Rejected, "OutOfcpu")
	})
}

// TestWhoWaitsForRoomThatDoesNotComeFreeIsRejected: after a restart a place is
// kept for who had it; then it is wanted again.
func TestWhoWaitsForRoomThatDoesNotComeFreeIsRejected(t *testing.T) {
	inRoom(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *lobby) {
		old, next := assigned(needs("old", "3")), assigned(needs("next", "2"))
		l.ask(old, true)
		l.MarkTerminating(old.UID)
		l.ask(next, false)
		l.is(t, next, plan.Wait, "OutOfcpu")
		l.ask(old, true)
		l.is(t, next, plan.Rejected, "OutOfcpu")
		if c, _ := l.Snapshot(t.Context()); c.Admitted != 1 || c.Waiting != 0 {
			t.Errorf("%+v", c)
		}
	})
}
