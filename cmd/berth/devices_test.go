package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/node/devices"
)

// TestTerminatedPodHoldsNoDevices covers an agent that stopped after it had persisted the terminal phase of
// the pod and before it had persisted the release of its devices.
func TestTerminatedPodHoldsNoDevices(t *testing.T) {
	t.Parallel()
	record := func(p corev1.PodPhase) checkpoint.Record { return checkpoint.Record{Memory: plan.Memory{Phase: p}} }
	records := map[types.UID]checkpoint.Record{
		"running": record(corev1.PodRunning), "pending": record(corev1.PodPending), "new": record(""),
		"succeeded": record(corev1.PodSucceeded), "failed": record(corev1.PodFailed),
	}
	allocations := `{"version":1,"held":[`
	for _, uid := range []string{"running", "pending", "new", "succeeded", "failed"} {
		allocations += `{"pod":"` + uid + `","container":"c","resource":"example.com/x","ids":["` + uid + `"]},`
	}
	d := devices.New(
		devices.Options{
			Checkpoint: []byte(allocations +
				`{"pod":"unknown","container":"c","resource":"example.com/x","ids":["u"]}]}`),
			PodKnown: mayHoldDevices(records),
		},
	)
	if f := d.Stats(); len(f) != 1 || f[0].Allocated != 3 {
		t.Errorf("got %+v, want 3 allocated devices", f)
	}
}
