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
	At      time.Time
	Took    time.Duration
	Result  Result
	Counted bool // against a threshold
	Output  string
}

// Report is one probe of one container instance.
type Report struct {
	Container, ContainerID string
	Probed                 plan.Probed
	Passed                 *bool     // what the thresholds say; nil: nothing yet
	Due                    time.Time // zero: it is not to run again
	Running                bool
	Missed                 int64    // runs that fell out because the node was too busy
	Last                   []Sample // newest first
}

// Reports tells of all probes of a pod's container instances, by container and
// kind; none if nothing of the pod is probed.
func (o *Probes) Reports(ctx context.Context, uid types.UID) []Report {
	reply := make(chan []Report, 1)
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
	reply chan<- []Report // buffered
}

func (o *Probes) report(uid types.UID) (out []Report) {
	p := o.pods[uid]
	if p == nil {
		return nil
	}
	for _, in := range p.instances {
		for _, x := range in.probes {
			r := Report{
				Container: in.watch.Name, ContainerID: in.watch.ID, Probed: x.Probed,
				Passed: x.passed, Running: x.run != nil, Missed: x.skipped, Last: slices.Clone(x.last),
			}
			if x.wanted && x.run == nil && (x.at >= 0 || x.queued) {
				r.Due = x.due
			}
			out = append(out, r)
		}
	}
	return out
}
