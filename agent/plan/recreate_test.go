package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestRecreateAfterEviction checks which evicted pods are recreated, and when.
func TestRecreateAfterEviction(t *testing.T) {
	t.Parallel()
	filed := func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }
	for _, row := range []struct {
		what  string
		pod   []func(*corev1.Pod)
		more  func(*Input)
		after time.Duration
		want  bool
	}{
		{"a static pod after a minute", []func(*corev1.Pod){filed}, nil, time.Minute, true},
		{"not earlier", []func(*corev1.Pod){filed}, nil, time.Minute - 1, false},
		{"later after repeated evictions", []func(*corev1.Pod){filed}, func(in *Input) { in.Memory.RecreateCount = 2 },
			4*time.Minute - 1, false},
		{"after the longer delay", []func(*corev1.Pod){filed}, func(in *Input) { in.Memory.RecreateCount = 2 },
			4 * time.Minute, true},
		{"at most ten minutes later", []func(*corev1.Pod){filed}, func(in *Input) { in.Memory.RecreateCount = 99 },
			10 * time.Minute, true},
		{"not a pod from an API server", nil, nil, time.Hour, false},
		{"not a pod that runs once", []func(*corev1.Pod){filed, never}, nil, time.Hour, false},
		{"not a pod that exceeded its limits", []func(*corev1.Pod){filed},
			func(in *Input) { in.Termination.NodeCaused = false }, time.Hour, false},
		{"not on a node with an API server", []func(*corev1.Pod){filed}, func(in *Input) { in.Limits.RecreateBase = 0 },
			time.Hour, false},
		{"not a deleted pod", []func(*corev1.Pod){filed}, func(in *Input) {
			in.Termination.RemovePod = true
		}, time.Hour,
			false},
	} {
		w := up(row.pod...).terminate("Evicted", 0)
		w.in.Limits.RecreateBase, w.in.Limits.RecreateMax = time.Minute, 10*time.Minute
		w.in.Termination.NodeCaused = true
		if row.more != nil {
			row.more(&w.in)
		}
		if p := Decide(w.in); p.Recreate {
			t.Errorf("%s: recreated while terminating", row.what)
		}
		w.settle()
		w.after(row.after - w.in.Now.Sub(w.in.Termination.RequestedAt))
		p := Decide(w.in)
		if p.Recreate != row.want {
			t.Errorf("%s: %t, reasons %+v", row.what, p.Recreate, p.Reasons)
		}
	}
	l := Limits{RecreateMax: 10 * time.Minute}
	from := time.Unix(1000, 0)
	for _, row := range []struct {
		m    Memory
		want int
	}{
		{Memory{StartTime: from, RecreateCount: 3}, 0},
		{Memory{StartTime: from, RecreateCount: 3, Termination: &Termination{RequestedAt: from}}, 0},
		{Memory{StartTime: from, RecreateCount: 3, Termination: &Termination{RequestedAt: from, NodeCaused: true}}, 4},
		{Memory{StartTime: from, RecreateCount: 3,
			Termination: &Termination{RequestedAt: from.Add(10 * time.Minute), NodeCaused: true}}, 1},
	} {
		if got := l.RecreateCount(row.m); got != row.want {
			t.Errorf("%+v: %d recreations", row.m, got)
		}
	}
}
