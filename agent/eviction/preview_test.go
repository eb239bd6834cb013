package eviction

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
)

// previewNode is a node under disk pressure with an ordinary and a critical pod.
func previewNode() (*Reclaimer, pressure.Config, *Observation) {
	statuses := status.New()
	statuses.Put(snapshotOf("web", func(s *status.Snapshot) { s.Verdict.State = plan.Admitted }))
	statuses.Put(snapshotOf("dns", func(s *status.Snapshot) {
		s.Verdict.State = plan.Admitted
		s.Pod.Spec.Priority = new(int32(2_000_000_000))
	}))
	statuses.Put(snapshotOf("done", func(s *status.Snapshot) { s.Status.Phase = corev1.PodSucceeded }))
	r := NewReclaimer(ReclaimerOptions{
		Statuses: statuses, Standalone: true,
		Measure: func(_ context.Context, _ pressure.Signal, pods []*status.Snapshot) (out []pressure.Candidate) {
			for _, s := range pods {
				out = append(out, pressure.Candidate{
					Pod: s.Pod, Measured: true, Usage: pressure.Usage{Volumes: pressure.DiskUsage{Bytes: 7}},
				})
			}
			return out
		},
	})
	c := pressure.Config{Thresholds: []pressure.Threshold{
		{Signal: pressure.NodefsAvailable, Hard: true, Quantity: 100},
	}}
	v := &Observation{Reading: pressure.Reading{Levels: map[pressure.Signal]pressure.Level{
		pressure.NodefsAvailable: {Available: 50, Capacity: 400},
	}}}
	_, v.Evaluation = c.Evaluate(pressure.State{}, v.Reading)
	return r, c, v
}

func TestPreviewOfActiveSignals(t *testing.T) {
	t.Parallel()
	r, c, v := previewNode()
	p, err := r.Preview(t.Context(), c, v, "")
	if err != nil || len(p.Signals) != 1 || len(p.Exempt) != 1 {
		t.Fatalf("got %+v, %v", p, err)
	}
	s := p.Signals[0]
	if s.Signal != "nodefs.available" || !s.UnderPressure || len(s.Order) != 1 || s.Order[0].Name != "web" ||
		s.Order[0].Used != 7 || !s.Order[0].Known {
		t.Errorf("got %+v", s)
	}
	if p.Exempt[0].Name != "dns" || p.Exempt[0].Reason != "critical because of its priority 2000000000" {
		t.Errorf("got %+v", p.Exempt)
	}
}

func TestPreviewWithoutPressureShowsOneSignalOfEachKind(t *testing.T) {
	t.Parallel()
	r, c, v := previewNode()
	v.Evaluation = pressure.Evaluation{}
	p, err := r.Preview(t.Context(), c, v, "")
	if err != nil || len(p.Signals) != 3 || p.Signals[1].UnderPressure {
		t.Errorf("got %+v, %v", p, err)
	}
	if p, err = r.Preview(t.Context(), c, v, "pid.available"); err != nil || len(p.Signals) != 1 {
		t.Errorf("requested signal: got %+v, %v", p, err)
	}
}

func TestPreviewRejectsRequests(t *testing.T) {
	t.Parallel()
	r, c, v := previewNode()
	if _, err := r.Preview(t.Context(), c, v, "cpu.available"); !apierrors.IsBadRequest(err) {
		t.Errorf("unknown signal: got error %v", err)
	}
	if _, err := r.Preview(t.Context(), c, nil, ""); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("before the first observation: got error %v", err)
	}
}

func TestObservationInNames(t *testing.T) {
	t.Parallel()
	_, _, v := previewNode()
	if got := v.AvailableAmounts(); len(got) != 1 || got["nodefs.available"] != 50 {
		t.Errorf("got amounts %v", got)
	}
	if got := v.ConditionStates(); len(got) != 3 || !got["DiskPressure"] || got["MemoryPressure"] {
		t.Errorf("got conditions %v", got)
	}
	var m Monitor
	if got := m.Warnings(); got != nil {
		t.Errorf("before the first observation: got %v", got)
	}
	m.latest.Store(v)
	if got := m.Warnings(); len(got) != 1 || got[0].Field != "DiskPressure" || got[0].Message == "" {
		t.Errorf("got warnings %v", got)
	}
}
