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

// TestWhatIsOutdatedIsNotWritten: a report that had to wait for its place among the
// calls says nothing of a pod that has had another turn since, or is forgotten.
func TestWhatIsOutdatedIsNotWritten(t *testing.T) {
	t.Parallel()
	held := pod("a", 0)
	held.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}},
	}
	again := func(s *Scheduler) {
		s.queue.requeueRejectedBy(time.Now())
		s.queue.flush(time.Now().Add(maxBackoff))
		s.scheduleOne()
	}
	for what, r := range map[string]struct {
		first  *corev1.Pod
		then   func(*Scheduler)
		calls  []string
		events int
	}{
		"nothing since":        {pod("a", 0), func(*Scheduler) {}, []string{"patch status"}, 1},
		"a second report":      {pod("a", 0), again, []string{"patch status"}, 1},
		"a node since":         {pod("a", 0), func(s *Scheduler) { s.nodeUpdated(nil, node); again(s) }, []string{"create binding"}, 1},
		"gone since":           {pod("a", 0), func(s *Scheduler) { s.podDeleted(pod("a", 0)) }, nil, 0},
		"gated":                {held, func(*Scheduler) {}, []string{"patch status"}, 0},
		"a gate opened, bound": {held, func(s *Scheduler) { s.nodeUpdated(nil, node); s.podUpdated(held, pod("a", 0)); s.scheduleOne() }, []string{"create binding"}, 1},
	} {
		s, told, letGo := crowded(t)
		s.podUpdated(nil, r.first)
		s.scheduleOne()
		r.then(s)
		if got := letGo(); !slices.Equal(got, r.calls) || len(told.Events) != r.events {
			t.Errorf("%s: calls are %v, with %d events; want %v with %d", what, got, len(told.Events), r.calls, r.events)
		}
	}
}

// crowded is a scheduler none of whose calls to the server has a place before letGo,
// which says what was called then.
func crowded(t *testing.T) (s *Scheduler, told *record.FakeRecorder, letGo func() []string) {
	t.Helper()
	client, told := fake.NewClientset(), record.NewFakeRecorder(10)
	s = &Scheduler{
		Config: Config{
			Name: DefaultName, Client: client, Informers: informers.NewSharedInformerFactory(client, 0),
			Events: told, Log: slog.New(slog.DiscardHandler),
		},
		cluster: placement.NewCluster(), queue: newQueue(), inbox: inbox{wake: make(chan struct{}, 1)},
		callSlots: make(chan struct{}, maxConcurrentCalls), ctx: t.Context(),
	}
	var called []string
	client.PrependReactor("*", "pods", func(a ktesting.Action) (bool, runtime.Object, error) {
		if e := s.queue.entries["a"]; e != nil && e.callMu.TryLock() {
			e.callMu.Unlock()
			t.Errorf("%s %s of a pod beside other calls of it", a.GetVerb(), a.GetSubresource())
		}
		called = append(called, a.GetVerb()+" "+a.GetSubresource()) // the client has a lock
		return true, &corev1.Pod{}, nil
	})
	for range maxConcurrentCalls {
		s.callSlots <- struct{}{}
	}
	return s, told, func() []string {
		for range maxConcurrentCalls {
			<-s.callSlots
		}
		s.pendingCalls.Wait()
		return called
	}
}
