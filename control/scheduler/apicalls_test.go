package scheduler

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"berth/control/scheduler/placement"
)

// TestOutdatedFailureIsNotWritten: a delayed status update is dropped if the pod has a newer
// attempt or was removed.
func TestOutdatedFailureIsNotWritten(t *testing.T) {
	t.Parallel()
	gated := pod("a", 0)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}},
	}
	retry := func(s *Scheduler) {
		s.queue.requeueRejectedBy("", time.Now())
		s.queue.flush(time.Now().Add(maxBackoff))
		s.scheduleOne()
	}
	for name, r := range map[string]struct {
		first  *corev1.Pod
		next   func(*Scheduler)
		calls  []string
		events int
	}{
		"no change":      {pod("a", 0), func(*Scheduler) {}, []string{"patch status"}, 1},
		"second failure": {pod("a", 0), retry, []string{"patch status"}, 1},
		"node added": {pod("a", 0), func(s *Scheduler) { s.nodeUpdated(nil, node); retry(s) },
			[]string{"create binding"}, 1},
		"pod deleted": {pod("a", 0), func(s *Scheduler) { s.podDeleted(pod("a", 0)) }, nil, 0},
		"gated":       {gated, func(*Scheduler) {}, []string{"patch status"}, 0},
		"gate removed, bound": {gated, func(s *Scheduler) {
			s.nodeUpdated(nil, node)
			s.podUpdated(gated,
				pod("a", 0))
			s.scheduleOne()
		}, []string{"create binding"}, 1},
	} {
		s, events, unblock := newBlockedScheduler(t)
		s.podUpdated(nil, r.first)
		s.scheduleOne()
		r.next(s)
		if got := unblock(); !slices.Equal(got, r.calls) || len(events.Events) != r.events {
			t.Errorf("%s: got calls %v and %d events, want %v and %d", name, got, len(events.Events), r.calls, r.events)
		}
	}
}

// TestPreemptionClearsNominations: pods of a lower priority lose their nomination for the node of a preemption.
func TestPreemptionClearsNominations(t *testing.T) {
	t.Parallel()
	s, _, unblock := newBlockedScheduler(t)
	s.nodeUpdated(nil, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}},
	})
	victim := pod("victim", 1)
	victim.Spec.NodeName = "n"
	s.podUpdated(nil, victim)
	gated := pod("gated", 5)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	gated.Status.NominatedNodeName = "n"
	gated.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonSchedulingGated, Message: messageGated}}
	s.podUpdated(nil, gated)
	s.podUpdated(nil, pod("preemptor", 10))
	s.scheduleOne()
	calls := unblock()
	slices.Sort(calls)
	// the nomination, the condition of the victim and its deletion, and the status of the preemptor
	if want := []string{"delete ", "patch status", "patch status", "patch status"}; !slices.Equal(calls, want) {
		t.Errorf("got calls %v, want %v", calls, want)
	}
}

// newBlockedScheduler returns a scheduler whose API calls wait until unblock is called, which
// returns the calls made.
func newBlockedScheduler(t *testing.T) (s *Scheduler, events *record.FakeRecorder, unblock func() []string) {
	t.Helper()
	client, events := fake.NewClientset(), record.NewFakeRecorder(10)
	s = &Scheduler{
		Config: Config{
			Name: DefaultName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0),
			Events: events, Log: slog.New(slog.DiscardHandler),
		},
		cluster: placement.NewCluster(), queue: newQueue(), inbox: inbox{wake: make(chan struct{}, 1)},
		callSlots: make(chan struct{}, maxConcurrentCalls), ctx: t.Context(),
	}
	var called []string
	client.PrependReactor("*", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		if e := s.queue.entries["a"]; e != nil && e.callMu.TryLock() {
			e.callMu.Unlock()
			t.Errorf("%s %s: concurrent calls for one pod", a.GetVerb(), a.GetSubresource())
		}
		called = append(called, a.GetVerb()+" "+a.GetSubresource()) // the client serializes reactors
		return true, &corev1.Pod{}, nil
	})
	for range maxConcurrentCalls {
		s.callSlots <- struct{}{}
	}
	return s, events, func() []string {
		for range maxConcurrentCalls {
			<-s.callSlots
		}
		s.pendingCalls.Wait()
		return called
	}
}
