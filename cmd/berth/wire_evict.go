package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/agent/eviction"
	"berth/node/pressure"
	"berth/nodeapi"
	"berth/podspec"
)

// evictionOrder returns the current eviction order.
func (b *berth) evictionOrder(ctx context.Context, signal string) (out nodeapi.EvictionPreview, err error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	v := b.pressure.Latest()
	if v == nil {
		return out, apierrors.NewServiceUnavailable("node usage has not been measured yet")
	}
	signals, err := selectSignals(signal, v)
	if err != nil {
		return out, err
	}
	for _, s := range signals {
		x := nodeapi.EvictionSignal{
			Signal: string(
				s,
			), Message: b.pressure.Config.SignalMessage(s, v.Reading, v.Evaluation),
			UnderPressure: v.Has(s.Condition()), Resource: string(s.Resource()),
			Requestable: s.Requestable(), Order: []nodeapi.EvictionRank{},
		}
		for _, r := range b.reclaimer.Rank(ctx, s, v.Layout) {
			x.Order = append(x.Order, nodeapi.EvictionRank{
				Namespace: r.Pod.Namespace, Name: r.Pod.Name, UID: r.Pod.UID, Known: r.Measured, Used: r.Used,
				Requested: r.Requested,
				Partial:   r.Usage.Partial, UsedText: r.UsageString(s), RequestedText: s.Format(r.Requested),
				ExceedsRequest: r.Exceeds, Priority: r.Priority,
			})
		}
		out.Signals = append(out.Signals, x)
	}
	for _, s := range b.agent.StatusCache.List() {
		terminated := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed
		if terminated || !podspec.IsCritical(s.Pod, b.config.Standalone()) {
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

// selectSignals returns the requested signal or, if none is requested, the active signals or one of
// each kind.
func selectSignals(signal string, v *eviction.Observation) (out []pressure.Signal, err error) {
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
