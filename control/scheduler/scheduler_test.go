package scheduler

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"berth/control/scheduler/placement"
)

func TestMain(m *testing.M) {
	registerMetrics() // before tests use them in parallel
	os.Exit(m.Run())
}

// TestQueueIsFlushedDuringBurst: while events arrive without a pause, a pod is scheduled soon after its backoff.
func TestQueueIsFlushedDuringBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		s, err := New(Config{Client: client, Informers: factory, Events: record.NewFakeRecorder(10),
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		waiting := pod("waiting", 100)
		s.queue.update(waiting, time.Now())
		s.queue.addUnschedulable(s.queue.pop(time.Now()), []placement.Filter{placement.FilterNodeResourcesFit},
			time.Now())
		s.queue.requeueRejectedBy("", time.Now())
		s.cluster.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("9")}}})
		ctx, cancel := context.WithCancel(t.Context())
		begin, scheduled, handled := time.Now(), time.Duration(0), 0
		var burst func()
		burst = func() {
			if handled++; s.cluster.NodeOf(waiting.UID) != "" && scheduled == 0 {
				scheduled = time.Since(begin)
			}
			if time.Sleep(10 * time.Millisecond); handled < 500 {
				s.inbox.post(burst)
			} else {
				cancel()
			}
		}
		s.inbox.post(burst)
		factory.Start(ctx.Done())
		s.Run(ctx)
		factory.Shutdown()
		if latest := initialBackoff + flushInterval + 100*time.Millisecond; scheduled == 0 || scheduled > latest {
			t.Errorf("scheduled after %v of a burst of %v, want at most %v", scheduled, time.Since(begin), latest)
		}
	})
}
