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

// MeasureFunc measures the disk usage of a pod within one round of measurements. It may be called
// for several pods concurrently. With an error, the result is what was counted until then.
type MeasureFunc func(context.Context, *status.Snapshot) (pressure.Usage, error)

// DiskMeter measures the disk usage of many pods for a ranking. Every field is required.
type DiskMeter struct {
	NewMeasurement func(context.Context) MeasureFunc
	LastUsage      func(types.UID) (pressure.Usage, bool) // the last complete measurement
	Log            *slog.Logger
}

const (
	measureTimeout = time.Minute      // timeout of measuring all pods
	podTimeout     = 15 * time.Second // timeout of one pod
	parallelism    = 4
)

// Measure measures several pods concurrently. A pod that could not be measured completely has the
// larger of the partial result and its last complete measurement, and is marked as partial.
func (d *DiskMeter) Measure(ctx context.Context, pods []*status.Snapshot) []pressure.Candidate {
	within, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	round := d.NewMeasurement(within)
	out, failed := make([]pressure.Candidate, len(pods)), make([]error, len(pods))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(parallelism, len(pods)) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(pods)); i = next.Add(1) - 1 {
				out[i], failed[i] = d.one(within, round, pods[i])
			}
		})
	}
	wg.Wait()
	partial := slices.DeleteFunc(failed, func(err error) bool { return err == nil })
	if len(partial) > 0 && ctx.Err() == nil {
		d.Log.Warn("disk usage of pods incomplete", "pods", len(partial), "total", len(pods), "err", partial[0])
	}
	return out
}

func (d *DiskMeter) one(ctx context.Context, round MeasureFunc, s *status.Snapshot) (pressure.Candidate, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	u, err := round(ctx, s)
	if err != nil {
		err = fmt.Errorf("measure pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
		if last, ok := d.LastUsage(s.Pod.UID); ok {
			u = u.AtLeast(last)
		}
		u.Partial = true
	}
	return pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Resources.Allocated), Usage: u, Measured: true},
		err
}
