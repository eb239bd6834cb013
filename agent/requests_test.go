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
		l.until(time.Minute, "the pod has succeeded", func() bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodSucceeded
		})
		e := corev1.EphemeralContainer{}
		e.Name, e.Image = "debug", "x"
		if err := l.agent.AddEphemeralContainer(t.Context(), pod.UID, e); err == nil ||
			!strings.Contains(err.Error(), "pod p has finished") {
			t.Errorf("got %v, want an error", err)
		}
		if got := l.agent.desired.ephemeral[pod.UID]; len(got) != 0 {
			t.Errorf("ephemeral containers %v were stored", got)
		}
	})
}

// TestEphemeralContainerIsOnDiskBeforeReply checks that the container survives if the agent is killed
// right after the reply.
func TestEphemeralContainerIsOnDiskBeforeReply(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod := hostfake.PodOf("p", "a")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Minute, "the pod runs", l.isRunning(pod))
		e := corev1.EphemeralContainer{}
		e.Name, e.Image = "debug", "x"
		if err := l.agent.AddEphemeralContainer(t.Context(), pod.UID, e); err != nil {
			t.Fatal(err)
		}
		stored, err := l.agent.Store.Load()
		if rec := stored[pod.UID].Pod; err != nil || rec == nil || len(rec.Spec.EphemeralContainers) != 1 {
			t.Errorf("stored pod: %+v, %v", rec, err)
		}
		l.until(time.Minute, "the ephemeral container runs", func() bool {
			return len(h.RunningContainers(pod.UID)) == 2
		})
	})
}

func TestEphemeralContainersSurviveSnapshotAndRestart(t *testing.T) {
	t.Parallel()
	pod := hostfake.PodOf("p", "a")
	e := corev1.EphemeralContainer{}
	e.Name = "debug"
	s := newDesiredPods()
	stored := pod.DeepCopy()
	stored.Spec.EphemeralContainers = append(stored.Spec.EphemeralContainers, e)
	s.restoreEphemeralContainers(map[types.UID]checkpoint.Record{pod.UID: {Pod: stored}})
	for range 2 {
		s.apply(&source.Snapshot{Source: "files", Pods: []*corev1.Pod{pod}, Ready: true})
		if got := s.pods[pod.UID].Spec.EphemeralContainers; len(got) != 1 || got[0].Name != "debug" {
			t.Errorf("got ephemeral containers %v, want debug", got)
		}
	}
	if len(pod.Spec.EphemeralContainers) != 0 {
		t.Error("the pod of the source was modified")
	}
	if again := s.withEphemeralContainers(stored); again != stored {
		t.Error("a pod that has the containers already was copied")
	}
}
