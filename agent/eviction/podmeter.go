package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/pressure"
)

// MeasureFunc measures the disk usage of a pod within one round of measurements. It may be called
// for several pods concurrently. With an error, the result is what was counted until then.
type MeasureFunc func(context.Context, *status.Snapshot) (pressure.Usage, error)

// PodMeter measures the usage of many pods for a ranking. Every field is required.
type PodMeter struct {
	NewMeasurement func(context.Context) MeasureFunc      // of disk usage
	LastUsage      func(types.UID) (pressure.Usage, bool) // the last complete measurement of disk usage
	Memory         MeasureFunc                            // memory and processes
	Log            *slog.Logger
}

const (
	measureTimeout = time.Minute      // timeout of measuring all pods
	podTimeout     = 15 * time.Second // timeout of one pod
	parallelism    = 4
)

// Measure measures the usage of pods for a signal.
func (d *PodMeter) Measure(ctx context.Context, s pressure.Signal, pods []*status.Snapshot) []pressure.Candidate {
	if s.Condition() == corev1.NodeDiskPressure {
		return d.measureDisk(ctx, pods)
	}
	out := make([]pressure.Candidate, 0, len(pods))
	for _, s := range pods {
		c := pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Resources.Allocated)}
		var err error
		if c.Usage, err = d.Memory(ctx, s); err != nil {
			d.Log.Warn("pod usage measurement failed", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "err", err)
		}
		c.Measured = err == nil
		out = append(out, c)
	}
	return out
}

// measureDisk measures several pods concurrently. A pod that could not be measured completely has the
// larger of the partial result and its last complete measurement, and is marked as partial.
func (d *PodMeter) measureDisk(ctx context.Context, pods []*status.Snapshot) []pressure.Candidate {
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

func (d *PodMeter) one(ctx context.Context, round MeasureFunc, s *status.Snapshot) (pressure.Candidate, error) {
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
