package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/nodeapi"
	"berth/test/images"
)

// crashLoopPod is a pod that crashes as often as it may, prints 2,000 lines a second, and
// fails every probe of its own, of which one has it restarted.
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
  - {name: ill, image: %[1]q, command: [sleep, 1h], livenessProbe: {exec: {command: ["false"]}, periodSeconds: 1, failureThreshold: 3}}
`, images.BusyboxRef)

// storm starts pods one at a time, without and beside a pod's storm, and looks at what
// is the agent's part of it: all but the runtime's calls, which a busy machine slows.
func (b *bench) storm(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	calm, err := b.parts(ctx, p)
	if err != nil {
		return err
	}
	if err := p.put("storm", crashLoopPod); err != nil {
		return err
	}
	if err := p.until(ctx, 1, isCrashLooping); err != nil {
		return fmt.Errorf("the storm: %w", err)
	}
	beside, err := b.parts(ctx, p)
	if err != nil {
		return err
	}
	if err := p.remove("storm"); err != nil {
		return err
	}
	if err := p.until(ctx, 1, func(e nodeapi.PodEvent) bool { return e.Pod.Name == "storm" && gone(e) }); err != nil {
		return err
	}
	b.add("agent's part of a start, calm, median", ms(median(calm)), "-", "", "")
	b.add("a pod's storm delays another's start by, median", ms(max(0, median(beside)-median(calm))), "-", "", "<= 50 ms")
	b.add("a pod's storm delays another's start by, worst", ms(max(0, slices.Max(beside)-median(calm))), "-", "", "<= 50 ms")
	return nil
}

// isCrashLooping: its containers have crashed again and again.
func isCrashLooping(e nodeapi.PodEvent) bool {
	restarts := int32(0)
	for _, c := range e.Pod.Status.ContainerStatuses {
		restarts += c.RestartCount
	}
	return e.Pod.Name == "storm" && restarts >= 6
}

// parts are the agent's parts of starts, from the file written to Running seen.
func (b *bench) parts(ctx context.Context, p *pods) (parts []time.Duration, err error) {
	const name = "beside"
	its := func(is func(nodeapi.PodEvent) bool) func(nodeapi.PodEvent) bool {
		return func(e nodeapi.PodEvent) bool { return e.Pod.Name == name && is(e) }
	}
	for i := range 6 * *rounds {
		began := time.Now()
		if err := p.put(name, manifest(name, "sleep", "1h")); err != nil {
			return nil, err
		}
		if err := p.until(ctx, 1, its(running)); err != nil {
			return nil, err
		}
		took := time.Since(began)
		calls, err := callsOf(ctx, p.client, name)
		if err != nil {
			return nil, err
		}
		if err := p.remove(name); err != nil {
			return nil, err
		}
		if err := p.until(ctx, 1, its(gone)); err != nil {
			return nil, err
		}
		if i > 0 { // the first warms up
			parts = append(parts, took-calls)
		}
	}
	return parts, nil
}

// callsOf is how long the mutating calls of a pod's start took.
func callsOf(ctx context.Context, client *nodeapi.Client, name string) (calls time.Duration, err error) {
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
