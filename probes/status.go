package probes

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Sample is the result of one run.
type Sample struct {
	At       time.Time
	Duration time.Duration
	Result   Result
	Counted  bool // counted against a threshold
	Output   string
}

// Status describes one probe of a container instance.
type Status struct {
	Container, ContainerID string
	Probed                 plan.ProbeState
	Passed                 *bool     // result by thresholds; nil: none yet
	NextRun                time.Time // zero: it will not run again
	Running                bool
	Missed                 int64    // runs skipped because the node was too busy
	Recent                 []Sample // newest first
}

// Statuses returns the status of all probes of a pod by container and type. It is empty if the pod
// has no probes.
func (o *Manager) Statuses(ctx context.Context, uid types.UID) []Status {
	reply := make(chan []Status, 1)
	o.send(func(p *inbox) { p.requests = append(p.requests, statusRequest{uid, reply}) })
	select {
	case r := <-reply:
		return r
	case <-o.stopped:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// statusRequest asks Run for the statuses of a pod.
type statusRequest struct {
	uid   types.UID
	reply chan<- []Status // buffered
}

func (o *Manager) statuses(uid types.UID) (out []Status) {
	p := o.pods[uid]
	if p == nil {
		return nil
	}
	for _, in := range p.instances {
		for _, x := range in.probes {
			r := Status{
				Container: in.watch.Name, ContainerID: in.watch.ID, Probed: x.ProbeState,
				Passed: x.passed, Running: x.run != nil, Missed: x.skipped, Recent: slices.Clone(x.recent),
			}
			if x.wanted && x.run == nil && (x.heapIndex >= 0 || x.queued) {
				r.NextRun = x.due
			}
			out = append(out, r)
		}
	}
	return out
}
