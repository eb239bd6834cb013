package agent

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/hostfake"
	"berth/agent/source"
)

func TestFinishedPodGetsNoEphemeralContainer(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Exits = func(string) (time.Duration, int32, bool) { return time.Second, 0, true }
		pod := hostfake.PodOf("p", "a")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Minute, "it is over", func() bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodSucceeded
		})
		e := corev1.EphemeralContainer{}
		e.Name, e.Image = "debug", "x"
		if err := l.agent.AddEphemeralContainer(t.Context(), pod.UID, e); err == nil || !strings.Contains(err.Error(), "pod p has finished") {
			t.Errorf("answered %v", err)
		}
		if got := l.agent.desired.ephemeral[pod.UID]; len(got) != 0 {
			t.Errorf("kept %v", got)
		}
	})
}

// TestEphemeralContainerIsOnDiskBeforeReply: an agent that is killed right after has it.
func TestEphemeralContainerIsOnDiskBeforeReply(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod := hostfake.PodOf("p", "a")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Minute, "it runs", l.isRunning(pod))
		e := corev1.EphemeralContainer{}
		e.Name, e.Image = "debug", "x"
		if err := l.agent.AddEphemeralContainer(t.Context(), pod.UID, e); err != nil {
			t.Fatal(err)
		}
		kept, err := l.agent.Store.Load()
		if rec := kept[pod.UID].Pod; err != nil || rec == nil || len(rec.Spec.EphemeralContainers) != 1 {
			t.Errorf("on disk is %+v, %v", rec, err)
		}
		l.until(time.Minute, "it runs too", func() bool { return len(h.RunningContainers(pod.UID)) == 2 })
	})
}

func TestEphemeralContainersSurviveSnapshotAndRestart(t *testing.T) {
	t.Parallel()
	pod := hostfake.PodOf("p", "a")
	e := corev1.EphemeralContainer{}
	e.Name = "debug"
	s := newDesiredPods()
	kept := pod.DeepCopy()
	kept.Spec.EphemeralContainers = append(kept.Spec.EphemeralContainers, e)
	s.restoreEphemeralContainers(map[types.UID]checkpoint.Record{pod.UID: {Pod: kept}})
	for range 2 {
		s.apply(&source.Snapshot{Source: "files", Pods: []*corev1.Pod{pod}, Ready: true})
		if got := s.pods[pod.UID].Spec.EphemeralContainers; len(got) != 1 || got[0].Name != "debug" {
			t.Errorf("wanted with %v", got)
		}
	}
	if len(pod.Spec.EphemeralContainers) != 0 {
		t.Error("the pod of the source was changed")
	}
	if again := s.withEphemeralContainers(kept); again != kept {
		t.Error("a pod that has the containers already was copied")
	}
}
