package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/nodeapi"
	"berth/test/images"
)

// crashLoopPod is a pod with crash-looping containers, containers that print 2,000 lines per second, and
// containers that fail their readiness and liveness probes.
var crashLoopPod = fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: storm}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: crash0, image: %[1]q, command: [sh, -c, exit 3]}
  - {name: crash1, image: %[1]q, command: [sh, -c, exit 3]}
  - {name: prints0, image: %[1]q, command: [sh, -c, "while true; do seq 100; sleep 0.1; done"]}
  - {name: prints1, image: %[1]q, command: [sh, -c, "while true; do seq 100; sleep 0.1; done"]}
  - {name: unready, image: %[1]q, command: [sleep, 1h], readinessProbe: {exec: {command: ["false"]}, periodSeconds: 1}}
  - {name: ill, image: %[1]q, command: [sleep, 1h],
     livenessProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 3}}
`, images.BusyboxRef)

// storm measures the agent's share of a pod start without and with crashLoopPod on the node: the start
// time without the runtime's calls, which are slower on a busy machine.
func (b *bench) storm(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	unloaded, err := b.startOverheads(ctx, p)
	if err != nil {
		return err
	}
	if err := p.writeManifest("storm", crashLoopPod); err != nil {
		return err
	}
	if err := p.waitFor(ctx, 1, isCrashLooping); err != nil {
		return fmt.Errorf("wait for crash loop: %w", err)
	}
	loaded, err := b.startOverheads(ctx, p)
	if err != nil {
		return err
	}
	if err := p.remove("storm"); err != nil {
		return err
	}
	if err := p.waitFor(ctx, 1, func(e nodeapi.PodEvent) bool {
		return e.Pod.Name == "storm" &&
			deleted(e)
	}); err != nil {
		return err
	}
	b.add("agent's share of a pod start, unloaded node, median", ms(median(unloaded)), "-", "", "")
	b.add("pod start delay caused by a crash-looping pod, median", ms(max(0, median(loaded)-median(unloaded))), "-", "",
		"<= 50 ms")
	b.add("pod start delay caused by a crash-looping pod, worst", ms(max(0, slices.Max(loaded)-median(unloaded))), "-",
		"", "<= 50 ms")
	return nil
}

// isCrashLooping reports whether the containers of crashLoopPod have restarted at least six times.
func isCrashLooping(e nodeapi.PodEvent) bool {
	restarts := int32(0)
	for _, c := range e.Pod.Status.ContainerStatuses {
		restarts += c.RestartCount
	}
	return e.Pod.Name == "storm" && restarts >= 6
}

// startOverheads starts pods one at a time and returns the agent's share of each start, from the written
// manifest to the observed Running.
func (b *bench) startOverheads(ctx context.Context, p *pods) (overheads []time.Duration, err error) {
	const name = "started"
	named := func(cond func(nodeapi.PodEvent) bool) func(nodeapi.PodEvent) bool {
		return func(e nodeapi.PodEvent) bool { return e.Pod.Name == name && cond(e) }
	}
	for i := range 6 * *rounds {
		start := time.Now()
		if err := p.writeManifest(name, manifest(name, "sleep", "1h")); err != nil {
			return nil, err
		}
		if err := p.waitFor(ctx, 1, named(running)); err != nil {
			return nil, err
		}
		took := time.Since(start)
		calls, err := mutatingCallTime(ctx, p.client, name)
		if err != nil {
			return nil, err
		}
		if err := p.remove(name); err != nil {
			return nil, err
		}
		if err := p.waitFor(ctx, 1, named(deleted)); err != nil {
			return nil, err
		}
		if i > 0 { // the first round warms up
			overheads = append(overheads, took-calls)
		}
	}
	return overheads, nil
}

// mutatingCallTime returns the total duration of the mutating CRI calls of a pod start.
func mutatingCallTime(ctx context.Context, client *nodeapi.Client, name string) (calls time.Duration, err error) {
	t, err := client.Timeline(ctx, "default", name)
	if err != nil {
		return 0, err
	}
	for _, s := range t.Spans {
		if mutating(s.Name) {
			calls += s.End.Sub(s.Start)
		}
	}
	return calls, nil
}

func mutating(call string) bool {
	return call == "RunPodSandbox" || call == "CreateContainer" || call == "StartContainer"
}
