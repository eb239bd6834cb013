package scheduler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
)

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
}

func name(e *entry) string {
	if e == nil {
		return ""
	}
	return e.pod.Name
}

var start = time.Unix(1000, 0)

func TestTheImportantComeFirstThenTheOld(t *testing.T) {
	q := newQueue()
	q.set(pod("old", 1), start)
	q.set(pod("young", 1), start.Add(time.Second))
	q.set(pod("important", 2), start.Add(2*time.Second))
	q.set(pod("gone", 9), start)
	q.drop("gone")
	q.drop("never there")
	for _, want := range []string{"important", "old", "young", ""} {
		if got := name(q.next(start)); got != want {
			t.Fatalf("next is %q, want %q", got, want)
		}
	}
}

func TestBackOffDoublesToItsLongest(t *testing.T) {
	q, now := newQueue(), start
	q.set(pod("a", 0), now)
	for _, want := range []int{1, 2, 4, 8, 10, 10} {
		e := q.next(now)
		q.wait(e, []placement.Rule{placement.RuleResources}, now)
		q.tell(now, placement.RuleTaints)
		if e.state != waiting {
			t.Fatal("a change of taints wakes a pod that lacks CPU")
		}
		q.tell(now, placement.RuleResources)
		next := q.due(now)
		if got := next.Sub(now); got != time.Duration(want)*time.Second {
			t.Fatalf("rests for %v, want %ds", got, want)
		}
		if now = next.Add(-1); !q.due(now).Equal(next) || q.next(now) != nil {
			t.Fatal("it is looked at before its rest is over")
		}
		now = next
		q.due(now)
	}
	if name(q.next(now)) != "a" {
		t.Fatal("it is not looked at after its rest")
	}
}

func TestAWaitingPodIsLookedAtAgainAtLast(t *testing.T) {
	q := newQueue()
	q.set(pod("a", 0), start)
	q.wait(q.next(start), nil, start)
	if got := q.due(start).Sub(start); got != longestWaited {
		t.Fatalf("due after %v", got)
	}
	q.due(start.Add(longestWaited))
	if name(q.next(start.Add(longestWaited))) != "a" {
		t.Fatal("it is forgotten")
	}
}

func TestGatesHoldAPod(t *testing.T) {
	q := newQueue()
	held := pod("a", 0)
	held.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	if !q.set(held, start) || q.set(held.DeepCopy(), start) {
		t.Fatal("a gated pod is new once")
	}
	q.tell(start)
	if q.next(start) != nil {
		t.Fatal("a gate does not hold")
	}
	q.set(pod("a", 0), start)
	if name(q.next(start)) != "a" {
		t.Fatal("an opened gate holds")
	}
}

func TestAnAssumedPodIsNotQueuedByItsOwnUpdates(t *testing.T) {
	q := newQueue()
	q.set(pod("a", 0), start)
	q.next(start)
	q.set(pod("a", 0), start)
	q.tell(start)
	if q.next(start) != nil {
		t.Fatal("it has two turns at once")
	}
	q.rest("a", start)
	if got := q.due(start); !got.Equal(start.Add(time.Second)) {
		t.Fatalf("after a refused binding it is due at %v", got)
	}
}

func TestAFailedPreemptionWakesOnlyWhoStillWaits(t *testing.T) {
	q := newQueue()
	q.set(pod("a", 0), start)
	e := q.next(start)
	if q.again("a", start); e.state != assumed {
		t.Error("a pod on its way to a node has another turn")
	}
	q.wait(e, nil, start)
	if q.again("a", start); e.state == waiting {
		t.Error("one that waits is not woken")
	}
	q.again("never there", start)
}

func TestAChangedPodIsLookedAtSoon(t *testing.T) {
	q := newQueue()
	q.set(pod("a", 0), start)
	q.wait(q.next(start), nil, start)
	q.set(pod("a", 0), start)
	if q.entries["a"].state != waiting {
		t.Fatal("its own status wakes a pod")
	}
	changed := pod("a", 0)
	changed.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	q.set(changed, start)
	if q.entries["a"].state != resting {
		t.Fatal("a new toleration does not wake the pod")
	}
}
