package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/node/devices"
)

// TestTerminatedPodHoldsNoDevices covers an agent that stopped after it had persisted the end of
// the pod and before it had persisted the release of its devices.
func TestTerminatedPodHoldsNoDevices(t *testing.T) {
	t.Parallel()
	of := func(p corev1.PodPhase) checkpoint.Record { return checkpoint.Record{Memory: plan.Memory{Phase: p}} }
	records := map[types.UID]checkpoint.Record{
		"runs": of(corev1.PodRunning), "begins": of(corev1.PodPending), "new": of(""),
		"done": of(corev1.PodSucceeded), "failed": of(corev1.PodFailed),
	}
	kept := `{"version":1,"held":[`
	for _, uid := range []string{"runs", "begins", "new", "done", "failed"} {
		kept += `{"pod":"` + uid + `","container":"c","resource":"example.com/x","ids":["` + uid + `"]},`
	}
	d := devices.New(
		devices.Options{
			Checkpoint: []byte(kept + `{"pod":"unknown","container":"c","resource":"example.com/x","ids":["u"]}]}`),
			PodKnown:   mayHoldDevices(records),
		},
	)
	if f := d.Stats(); len(f) != 1 || f[0].Allocated != 3 {
		t.Errorf("%+v, want 3 given", f)
	}
}
