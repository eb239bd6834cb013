package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
)

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{Priority: &priority}}
}

func name(e *queuedPod) string {
	if e == nil {
		return ""
	}
	return e.pod.Name
}

var start = time.Unix(1000, 0)

func TestQueuePopsByPriorityThenAge(t *testing.T) {
	q := newQueue()
	q.update(pod("old", 1), start)
	q.update(pod("young", 1), start.Add(time.Second))
	q.update(pod("important", 2), start.Add(2*time.Second))
	q.update(pod("removed", 9), start)
	q.remove("removed")
	q.remove("unknown")
	for _, want := range []string{"important", "old", "young", ""} {
		if got := name(q.pop(start)); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestBackoffDoublesUpToMaximum(t *testing.T) {
	q, now := newQueue(), start
	q.update(pod("a", 0), now)
	for _, want := range []int{1, 2, 4, 8, 10, 10} {
		e := q.pop(now)
		q.addUnschedulable(e, []placement.Filter{placement.FilterNodeResourcesFit}, now)
		q.requeueRejectedBy("", now, placement.FilterTaintToleration)
		if e.state != unschedulable {
			t.Fatal("a taint change requeued a pod rejected for resources")
		}
		q.requeueRejectedBy("", now, placement.FilterNodeResourcesFit)
		next := q.flush(now)
		if got := next.Sub(now); got != time.Duration(want)*time.Second {
			t.Fatalf("got backoff %v, want %ds", got, want)
		}
		if now = next.Add(-1); !q.flush(now).Equal(next) || q.pop(now) != nil {
			t.Fatal("retried before the end of the backoff")
		}
		now = next
		q.flush(now)
	}
	if name(q.pop(now)) != "a" {
		t.Fatal("not retried after the backoff")
	}
}

func TestUnschedulablePodIsRetriedAfterMaximum(t *testing.T) {
	q := newQueue()
	q.update(pod("a", 0), start)
	q.addUnschedulable(q.pop(start), nil, start)
	if got := q.flush(start).Sub(start); got != maxUnschedulableDuration {
		t.Fatalf("got delay %v", got)
	}
	q.flush(start.Add(maxUnschedulableDuration))
	if name(q.pop(start.Add(maxUnschedulableDuration))) != "a" {
		t.Fatal("not retried")
	}
}

func TestSchedulingGatesBlockPod(t *testing.T) {
	q := newQueue()
	gatedPod := pod("a", 0)
	gatedPod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	if !q.update(gatedPod, start) || q.update(gatedPod.DeepCopy(), start) {
		t.Fatal("a gated pod was not reported exactly once")
	}
	q.requeueRejectedBy("", start)
	if q.pop(start) != nil {
		t.Fatal("a pod with scheduling gates was scheduled")
	}
	q.update(pod("a", 0), start)
	if name(q.pop(start)) != "a" {
		t.Fatal("a pod without scheduling gates was not scheduled")
	}
}

func TestAssumedPodIsNotRequeuedByUpdates(t *testing.T) {
	q := newQueue()
	q.update(pod("a", 0), start)
	q.pop(start)
	q.update(pod("a", 0), start)
	q.requeueRejectedBy("", start)
	if q.pop(start) != nil {
		t.Fatal("the assumed pod was scheduled again")
	}
	q.requeueAfterFailure("a", start)
	if got := q.flush(start); !got.Equal(start.Add(time.Second)) {
		t.Fatalf("after a failed binding, got retry at %v", got)
	}
}

func TestFailedPreemptionRequeuesOnlyUnschedulablePod(t *testing.T) {
	q := newQueue()
	q.update(pod("a", 0), start)
	e := q.pop(start)
	if q.requeueUnschedulable("a", start); e.state != assumed {
		t.Error("an assumed pod was requeued")
	}
	q.addUnschedulable(e, nil, start)
	if q.requeueUnschedulable("a", start); e.state == unschedulable {
		t.Error("an unschedulable pod was not requeued")
	}
	q.requeueUnschedulable("unknown", start)
}

func TestChangedPodIsRequeued(t *testing.T) {
	q := newQueue()
	q.update(pod("a", 0), start)
	q.addUnschedulable(q.pop(start), nil, start)
	q.update(pod("a", 0), start)
	if q.entries["a"].state != unschedulable {
		t.Fatal("a status update requeued the pod")
	}
	changed := pod("a", 0)
	changed.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	q.update(changed, start)
	if q.entries["a"].state != backoff {
		t.Fatal("a new toleration did not requeue the pod")
	}
}

// TestQueueCountsPods moves a pod through all states. The counts are those of the metrics.
func TestQueueCountsPods(t *testing.T) {
	t.Parallel()
	q, now := newQueue(), start
	check := func(when string, want [queueStates]int, rejected int) {
		t.Helper()
		if q.count != want || q.rejections[placement.FilterNodePorts] != rejected {
			t.Errorf("%s: got %v pods by state, want %v; %d rejected, want %d", when, q.count, want,
				q.rejections[placement.FilterNodePorts], rejected)
		}
	}
	gatedPod := pod("a", 0)
	gatedPod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	q.update(gatedPod, now)
	check("gated", [queueStates]int{gated: 1}, 0)
	q.update(pod("a", 0), now)
	check("without gates", [queueStates]int{active: 1}, 0)
	q.update(pod("a", 0), now)
	check("updated", [queueStates]int{active: 1}, 0)
	qp := q.pop(now)
	check("during an attempt", [queueStates]int{assumed: 1}, 0)
	q.addUnschedulable(qp, []placement.Filter{placement.FilterNodePorts}, now)
	check("rejected", [queueStates]int{unschedulable: 1}, 1)
	q.requeueRejectedBy("", now, placement.FilterNodePorts)
	check("in backoff", [queueStates]int{backoff: 1}, 1)
	q.flush(now.Add(initialBackoff))
	check("active again", [queueStates]int{active: 1}, 1)
	q.pop(now)
	check("during the next attempt", [queueStates]int{assumed: 1}, 0)
	q.remove("a")
	check("removed", [queueStates]int{}, 0)
}

// TestQueueReportsIncomingPods: each addition to a queue is reported once with its event.
func TestQueueReportsIncomingPods(t *testing.T) {
	t.Parallel()
	q, now := newQueue(), start
	var got []string
	q.incoming = func(state queueState, event queueEvent) {
		got = append(got, fmt.Sprintf("%s %s", queueLabels[state], event))
	}
	check := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
		got = nil
	}
	fail := func() { q.addUnschedulable(q.pop(now), []placement.Filter{placement.FilterNodePorts}, now) }
	gatedPod := pod("a", 0)
	gatedPod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	q.update(gatedPod, now)
	q.update(gatedPod.DeepCopy(), now)
	check("gated", "gated UnschedulablePodAdd")
	q.update(pod("a", 0), now)
	q.update(pod("a", 0), now)
	check("without gates", "active UnschedulablePodUpdatePodSchedulingGatesEliminated")
	fail()
	check("rejected", "unschedulable ScheduleAttemptFailure")
	q.requeueRejectedBy(eventNodeTaint, now, placement.FilterTaintToleration)
	q.requeueRejectedBy(eventAssignedPodDelete, now, placement.FilterNodePorts)
	q.requeueRejectedBy(eventAssignedPodDelete, now, placement.FilterNodePorts)
	check("requeued", "backoff AssignedPodDelete")
	now = now.Add(initialBackoff)
	q.flush(now)
	check("after the backoff", "active BackoffComplete")
	fail()
	now = now.Add(maxUnschedulableDuration)
	q.flush(now)
	check("after the maximum", "unschedulable ScheduleAttemptFailure", "active UnschedulableTimeout")
	fail()
	now = now.Add(maxBackoff)
	q.requeueRejectedBy(eventNodeAdd, now)
	check("requeued after the backoff", "unschedulable ScheduleAttemptFailure", "active NodeAdd")
	fail()
	tolerant := pod("a", 0)
	tolerant.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	q.update(tolerant, now)
	check("with a toleration", "unschedulable ScheduleAttemptFailure", "backoff UnschedulablePodUpdatePodToleration")
	now = now.Add(maxBackoff)
	q.flush(now)
	q.pop(now)
	q.requeueAfterFailure("a", now)
	check("binding failed", "active BackoffComplete", "backoff ScheduleAttemptFailure")
	q.update(pod("b", 0), now)
	check("another pod", "active UnschedulablePodAdd")
}
