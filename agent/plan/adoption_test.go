package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAdoptedMemoryKeepsReadinessAndRestartCounts(t *testing.T) {
	t.Parallel()
	started := metav1.NewTime(time.Unix(100, 0))
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pod := &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &started, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: started},
		},
		InitContainerStatuses: []corev1.ContainerStatus{
			{Name: "side", ContainerID: "containerd://side", State: running, Started: new(true), Ready: true},
		},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "ready", ContainerID: "containerd://ready", State: running, Started: new(true), Ready: true,
				RestartCount: 3},
			{Name: "again", ContainerID: "containerd://again", State: running, Started: new(false), Ready: true},
			{Name: "starting", ContainerID: "containerd://starting", State: running, Started: new(false)},
			{
				Name: "replaced", ContainerID: "containerd://old", State: running, Started: new(true), Ready: true,
				RestartCount: 7,
			},
		},
	}}
	m := AdoptedMemory(pod, []Sandbox{{ID: "s", CreatedAt: time.Unix(50, 0)}}, []Container{
		{ID: "side", Name: "side", State: Running}, {ID: "ready", Name: "ready", State: Running, Attempt: 3},
		{ID: "again", Name: "again", State: Running},
		{ID: "starting", Name: "starting", State: Running}, {ID: "new", Name: "replaced", State: Running, Attempt: 8},
		{ID: "old", Name: "replaced", State: Exited, Attempt: 7},
	})
	if m.StartTime != started.Time || m.Phase != corev1.PodRunning || len(m.IPs) != 1 || len(m.Conditions) != 1 {
		t.Errorf("got %+v", m)
	}
	for id, want := range map[string]Health{
		"side": {Started: true, Ready: true}, "ready": {Started: true, Ready: true}, "starting": {},
		"again": {Started: true, Ready: true}, // the kubelet has restarted
	} {
		got, known := m.Health[id]
		if !known || got.Ready != want.Ready || got.Started != want.Started {
			t.Errorf("health of %s: got %+v, %v", id, got, known)
		}
		for kind, succeeded := range map[ProbeKind]bool{
			StartupProbe: want.Started, LivenessProbe: want.Started, ReadinessProbe: want.Ready,
		} {
			if s := got.StateOf(kind); (s != nil && s.OK) != succeeded {
				t.Errorf("%s probe of %s: got %+v, want success %v", kind, id, s, succeeded)
			}
		}
	}
	for _, id := range []string{"old", "new"} { // the status is not about the container that runs
		if _, known := m.Health[id]; known {
			t.Errorf("health of %s is known", id)
		}
	}
	for name, want := range map[string]uint32{"side": 1, "ready": 4, "replaced": 9} {
		if got := m.Restarts[name].NextAttempt; got != want {
			t.Errorf("next attempt of %s: got %d, want %d", name, got, want)
		}
	}
	m = AdoptedMemory(&corev1.Pod{}, []Sandbox{{}, {CreatedAt: time.Unix(50, 0)}}, nil)
	if !m.StartTime.Equal(time.Unix(50, 0)) {
		t.Errorf("start time without a status: got %v, want that of the oldest sandbox", m.StartTime)
	}
}
