package probes

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Sample is one run of a probe.
type Sample struct {
	At       time.Time
	Duration time.Duration
	Result   Result
	Counted  bool // against a threshold
	Output   string
}

// Status is one probe of one container instance.
type Status struct {
	Container, ContainerID string
	Probed                 plan.Probed
	Passed                 *bool     // what the thresholds say; nil: nothing yet
	NextRun                time.Time // zero: it is not to run again
	Running                bool
	Missed                 int64    // runs that fell out because the node was too busy
	Recent                 []Sample // newest first
}

// Statuses tells of all probes of a pod's container instances, by container and
// kind; none if nothing of the pod is probed.
func (o *Manager) Statuses(ctx context.Context, uid types.UID) []Status {
	reply := make(chan []Status, 1)
	o.mail(func(p *post) { p.asks = append(p.asks, ask{uid, reply}) })
	select {
	case r := <-reply:
		return r
	case <-o.left:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// ask is a question for reports.
type ask struct {
	uid   types.UID
	reply chan<- []Status // buffered
}

func (o *Manager) report(uid types.UID) (out []Status) {
	p := o.pods[uid]
	if p == nil {
		return nil
	}
	for _, in := range p.instances {
		for _, x := range in.probes {
			r := Status{
				Container: in.watch.Name, ContainerID: in.watch.ID, Probed: x.Probed,
				Passed: x.passed, Running: x.run != nil, Missed: x.skipped, Recent: slices.Clone(x.last),
			}
			if x.wanted && x.run == nil && (x.at >= 0 || x.queued) {
				r.NextRun = x.due
			}
			out = append(out, r)
		}
	}
	return out
}
