package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
)

func TestAnAskedRestartIsOnDiskBeforeAnythingIsStopped(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		pod := podOf("p", "a", "b")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		var synced time.Time
		r.sync = func(ctx context.Context) error {
			pause(ctx, time.Second)
			synced = time.Now()
			return nil
		}
		reply := make(chan error, 1)
		w.mail.put(func(p *post) { p.asks = append(p.asks, ask{names: []string{"b"}, reply: reply}) })
		if err := <-reply; err != nil || synced.IsZero() {
			t.Errorf("answered %v, on disk at %v", err, synced)
		}
		again := func() bool {
			s, _ := r.board.Get(pod.UID)
			for _, k := range s.Seen.Containers {
				if k.Name == "b" && k.Attempt == 1 && k.State == plan.Running {
					return true
				}
			}
			return false
		}
		r.until(time.Minute, "b runs again", again)
		if at := r.h.when("stop"); len(at) != 1 || at[0].Before(synced) {
			t.Errorf("stopped at %v, on disk at %v", at, synced)
		}
		w.mail.put(func(p *post) { p.asks = append(p.asks, ask{names: []string{"c"}, reply: reply}) })
		if err := <-reply; err == nil || !strings.Contains(err.Error(), "no container c") {
			t.Errorf("answered %v", err)
		}
	})
}

func TestAddedContainersStayOverANewSnapshotAndARestart(t *testing.T) {
	t.Parallel()
	pod := podOf("p", "a")
	e := corev1.EphemeralContainer{}
	e.Name = "debug"
	s := newStore()
	kept := pod.DeepCopy()
	kept.Spec.EphemeralContainers = append(kept.Spec.EphemeralContainers, e)
	s.recall(map[types.UID]checkpoint.Record{pod.UID: {Pod: kept}})
	for range 2 {
		s.take(&source.Snapshot{Source: "files", Pods: []*corev1.Pod{pod}, Ready: true})
		if got := s.wanted[pod.UID].Spec.EphemeralContainers; len(got) != 1 || got[0].Name != "debug" {
			t.Errorf("wanted with %v", got)
		}
	}
	if len(pod.Spec.EphemeralContainers) != 0 {
		t.Error("the source's pod was changed")
	}
	if again := s.dressed(kept); again != kept {
		t.Error("what has it already is dressed again")
	}
}
