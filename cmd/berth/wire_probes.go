package main

import (
	"context"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/cli/explain"
	"berth/internal/nodeconfig"
	"berth/internal/telemetry"
	"berth/node"
	"berth/nodeapi"
	"berth/probes"
	"berth/probes/exectracker"
)

// newExecTracker creates the tracker for commands of probes and hooks.
func newExecTracker(b *berth) *exectracker.Tracker {
	return exectracker.New(
		exectracker.Options{
			Runtime: b.runtime.client, Dir: filepath.Join(b.config.StateDir, nodeconfig.ExecsDir), Log: b.log,
		},
	)
}

// newProbes creates the probe manager.
func newProbes(b *berth) *probes.Manager {
	return probes.New(probes.Options{
		Runtime: b.execs, UserAgent: "kube-probe/" + node.KubernetesRelease(), OnStart: b.metrics.ObserveProbeDelay,
		OnResult: func(s probes.Sample, of probes.Target) {
			result := map[probes.Result]string{
				probes.Success: "successful", probes.Warning: "successful", probes.Failure: "failed",
				probes.Unknown: "unknown",
			}[s.Result]
			b.metrics.ObserveProbe(telemetry.ProbeLabels{
				Kind: string(
					of.Kind,
				), Container: of.Container, Pod: of.Pod.Name, Namespace: of.Pod.Namespace, UID: string(of.Pod.UID),
			}, result, s.Duration)
		},
		Heartbeat: func() { b.heartbeat("probes") },
		OnForget:  func(pod *corev1.Pod) { b.metrics.DeleteProbes(pod.Namespace, pod.Name, string(pod.UID)) },
	})
}

// probesOf returns the probes of a pod.
func (b *berth) probesOf(ctx context.Context, namespace, name string) (nodeapi.PodProbes, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return nodeapi.PodProbes{}, err
	}
	states := convertAll(b.probes.Statuses(ctx, s.Pod.UID), func(r probes.Status) explain.ProbeState {
		return explain.ProbeState{
			ContainerID: r.ContainerID, Probed: r.Probed, Passed: r.Passed, NextRun: r.NextRun, Running: r.Running,
			MissedPeriods: r.Missed, Recent: convertAll(r.Recent, probeRun),
		}
	})
	return explain.Probes(b.podState(s), states, time.Now()), nil
}

func probeRun(s probes.Sample) nodeapi.ProbeRun {
	return nodeapi.ProbeRun{
		At: s.At, Seconds: s.Duration.Seconds(), Result: s.Result.String(), CountsTowardThreshold: s.Counted,
		Output: s.Output,
	}
}
