package eviction

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/node/pressure"
	"berth/nodeapi"
	"berth/podspec"
)

// Preview returns the current eviction order for a signal. With an empty signal it returns that of
// the signals to reclaim or, if there are none, of one signal of each kind. v is the latest
// observation, evaluated with c; nil: there is none yet. Preview is safe for concurrent use.
func (r *Reclaimer) Preview(
	ctx context.Context,
	c pressure.Config,
	v *Observation,
	signal string,
) (out nodeapi.EvictionPreview, err error) {
	if v == nil {
		return out, apierrors.NewServiceUnavailable("node usage has not been measured yet")
	}
	signals, err := previewSignals(v, signal)
	if err != nil {
		return out, err
	}
	for _, s := range signals {
		out.Signals = append(out.Signals, r.previewSignal(ctx, c, v, s))
	}
	for _, s := range r.Statuses.List() {
		terminated := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed
		if terminated || !podspec.IsCritical(s.Pod, r.Standalone) {
			continue
		}
		why := "critical, as all static pods of a node in a cluster"
		if podspec.IsCritical(s.Pod, true) {
			why = fmt.Sprintf("critical because of its priority %d", podspec.Priority(s.Pod))
		}
		out.Exempt = append(out.Exempt, nodeapi.ExemptPod{Namespace: s.Pod.Namespace, Name: s.Pod.Name, Reason: why})
	}
	return out, ctx.Err()
}

func (r *Reclaimer) previewSignal(
	ctx context.Context,
	c pressure.Config,
	v *Observation,
	s pressure.Signal,
) nodeapi.EvictionSignal {
	out := nodeapi.EvictionSignal{
		Signal: string(s), Message: c.SignalMessage(s, v.Reading, v.Evaluation),
		UnderPressure: v.Has(s.Condition()), Resource: string(s.Resource()),
		Requestable: s.Requestable(), Order: []nodeapi.EvictionRank{},
	}
	for _, p := range r.Rank(ctx, s, v.Layout) {
		out.Order = append(out.Order, nodeapi.EvictionRank{
			Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.Pod.UID, Known: p.Measured, Used: p.Used,
			Requested: p.Requested, Partial: p.Usage.Partial, UsedText: p.UsageString(s),
			RequestedText: s.Format(p.Requested), ExceedsRequest: p.Exceeds, Priority: p.Priority,
		})
	}
	return out
}

// previewSignals returns the requested signal or, if none is requested, the signals to reclaim or
// one of each kind.
func previewSignals(v *Observation, signal string) (out []pressure.Signal, err error) {
	if s := pressure.Signal(signal); signal != "" {
		if s.Condition() == "" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("signal: unknown signal %q", signal))
		}
		return []pressure.Signal{s}, nil
	}
	for _, m := range v.Reclaim {
		out = append(out, m.Signal)
	}
	if len(out) == 0 {
		out = []pressure.Signal{pressure.MemoryAvailable, pressure.NodefsAvailable, pressure.PIDAvailable}
	}
	return out, nil
}
