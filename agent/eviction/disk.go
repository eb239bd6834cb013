package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
)

// MeasureFunc is one round of measuring what pods have on the disk. It may be asked for
// several pods at once. With an error the use is what was counted until then.
type MeasureFunc func(context.Context, *status.Snapshot) (pressure.Usage, error)

// DiskMeter measures what many pods have on the disk, for a ranking. Every field is needed.
type DiskMeter struct {
	NewMeasurement func(context.Context) MeasureFunc
	LastUsage      func(types.UID) (pressure.Usage, bool) // what a pod had when all of it was counted last
	Log            *slog.Logger
}

const (
	allBound = time.Minute      // of measuring all pods
	oneBound = 15 * time.Second // of that, one
	atOnce   = 4
)

// Measure measures several pods at once. A pod of which not all could be counted in
// time, or for another reason, has the larger of what was counted now and what it had
// last, and is marked.
func (d *DiskMeter) Measure(ctx context.Context, pods []*status.Snapshot) []pressure.Candidate {
	within, cancel := context.WithTimeout(ctx, allBound)
	defer cancel()
	round := d.NewMeasurement(within)
	out, failed := make([]pressure.Candidate, len(pods)), make([]error, len(pods))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(atOnce, len(pods)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(pods)); i = next.Add(1) - 1 {
				out[i], failed[i] = d.one(within, round, pods[i])
			}
		})
	}
	wg.Wait()
	partial := slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(partial) > 0 && ctx.Err() == nil {
		d.Log.Warn("not all of what pods have on the disk is known", "pods", len(partial), "of", len(pods), "first", partial[0])
	}
	return out
}

func (d *DiskMeter) one(ctx context.Context, round MeasureFunc, s *status.Snapshot) (pressure.Candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, oneBound)
	defer cancel()
	u, err := round(ctx, s)
	if err != nil {
		err = fmt.Errorf("measure pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
		if was, there := d.LastUsage(s.Pod.UID); there {
			u = u.AtLeast(was)
		}
		u.Partial = true
	}
	return pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Sizes.Allocated), Usage: u, Measured: true}, err
}
