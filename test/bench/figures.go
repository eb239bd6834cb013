package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

func (b *bench) binary(context.Context) error {
	info, err := os.Stat(b.agent.Binary)
	if err != nil {
		return err
	}
	b.add("size of berth", fmt.Sprintf("%d MiB", info.Size()>>20), "-", "", "<= 45 MiB")
	return nil
}

// memoryIdle waits until the agent has given back what its start needed.
func (b *bench) memoryIdle(ctx context.Context) error {
	last := int64(1 << 40)
	err := hosts.WaitFor(ctx, "the agent's memory to come to rest", func() (bool, error) {
		now, err := b.rss()
		calm := now < 20<<20 || now == last && now < 64<<20
		last = now
		return calm, err
	})
	if err != nil {
		return err
	}
	b.add("resident memory, idle", mib(last), "-", "", "<= 30 MiB")
	return nil
}

func (b *bench) rss() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", b.agent.Pid()))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// warm starts one pod at a time, in turn with the bare calls.
func (b *bench) warm(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	x, err := b.newBare(ctx)
	if err != nil {
		return err
	}
	var ours, limit, overhead []time.Duration
	for i := range 6 * *rounds {
		took, err := x.burst(ctx, 1, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		if _, err := x.end(ctx, 1); err != nil {
			return err
		}
		mine, err := p.burst(ctx, 1, 1, "sleep", "1h")
		if err != nil {
			return err
		}
		over, err := b.overhead(ctx, p.client, "p000")
		if err != nil {
			return err
		}
		if _, err := p.end(ctx, 1); err != nil {
			return err
		}
		if i > 0 { // the first warms up
			limit, ours, overhead = append(limit, took), append(ours, mine), append(overhead, over)
		}
	}
	b.add("one warm pod, file written -> Running seen, median", ms(median(ours)), ms(median(limit)), ratio(median(ours), median(limit)), "<= 1.10 x")
	b.add("agent's overhead per pod, p50", ms(quantile(overhead, 0.5)), "0", "", "<= 10 ms")
	b.add("agent's overhead per pod, p99", ms(quantile(overhead, 0.99)), "0", "", "<= 30 ms")
	return nil
}

// overhead is the time from the pod's first look to the end of its last start,
// less the three mutating calls in between.
func (b *bench) overhead(ctx context.Context, client *nodeapi.Client, name string) (time.Duration, error) {
	t, err := client.Timeline(ctx, "default", name)
	if err != nil {
		return 0, err
	}
	var first, last time.Time
	var calls time.Duration
	for _, s := range t.Spans {
		if first.IsZero() {
			first = s.Start
		}
		switch s.Name {
		case "RunPodSandbox", "CreateContainer", "StartContainer":
			calls += s.End.Sub(s.Start)
		case "start":
			last = s.End
		}
	}
	if last.IsZero() || calls == 0 {
		return 0, fmt.Errorf("the timeline of %s has no start: %+v", name, t.Spans)
	}
	return last.Sub(first) - calls, nil
}

// burst starts and ends many pods at once, in turn with the bare calls, and
// measures memory and CPU while they idle.
func (b *bench) burst(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer func() { p.close() }()
	x, err := b.newBare(ctx)
	if err != nil {
		return err
	}
	var start, startLimit, end, endLimit []time.Duration
	for i := range *rounds {
		took, err := x.burst(ctx, *burst, 8, "ignore-term", ",", "sleep", "1h")
		if err != nil {
			return err
		}
		startLimit = append(startLimit, took)
		if took, err = x.end(ctx, 1); err != nil {
			return err
		}
		endLimit = append(endLimit, took)
		if took, err = p.burst(ctx, *burst, 1, "ignore-term", ",", "sleep", "1h"); err != nil {
			return err
		}
		start = append(start, took)
		if i == *rounds-1 {
			p.close()
			if err := b.idle(ctx); err != nil {
				return err
			}
			if p, err = b.newPods(ctx); err != nil {
				return err
			}
		}
		if took, err = p.end(ctx, *burst); err != nil {
			return err
		}
		end = append(end, took)
	}
	b.add(fmt.Sprintf("%d pods at once, last Running, median of %d", *burst, *rounds), ms(median(start)), ms(median(startLimit)), ratio(median(start), median(startLimit)), "<= 1.10 x")
	b.add(fmt.Sprintf("%d pods deleted at once, grace 1 s, all gone, median", *burst), ms(median(end)), ms(median(endLimit)), ratio(median(end), median(endLimit)), "<= 1.2 x")
	return nil
}

// idle measures while nothing happens: with the agent, then containerd with the
// same pods and the agent stopped.
func (b *bench) idle(ctx context.Context) error {
	rss, err := b.rss()
	if err != nil {
		return err
	}
	agent, daemon, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	if err := b.agent.Stop(ctx); err != nil {
		return err
	}
	_, alone, err := b.idleCPU(ctx)
	if err != nil {
		return err
	}
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	if err := b.agent.WaitReady(ctx); err != nil {
		return err
	}
	of := func(d time.Duration) string { return fmt.Sprintf("%.2f %%", 100*d.Seconds()/idle.Seconds()) }
	b.add(fmt.Sprintf("resident memory, %d pods", *burst), mib(rss), "-", "", "<= 38 MiB")
	b.add(fmt.Sprintf("CPU with %d idle pods, agent", *burst), of(agent), "0", "", "<= 0.3 %")
	b.add(fmt.Sprintf("CPU with %d idle pods, agent and containerd", *burst), of(agent+daemon), of(alone)+" (containerd alone)", "", "<= 1 % (polling: 3 %)")
	return nil
}

// idleCPU lets the machine come to rest and returns what is used after that.
func (b *bench) idleCPU(ctx context.Context) (agent, daemon time.Duration, err error) {
	var before, after [2]time.Duration
	for _, step := range []struct {
		wait time.Duration
		into *[2]time.Duration
	}{{10 * time.Second, &before}, {*idle, &after}} {
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-time.After(step.wait):
		}
		if step.into[0], step.into[1], err = b.cpu(); err != nil {
			return 0, 0, err
		}
	}
	return after[0] - before[0], after[1] - before[1], nil
}

// cpu returns the processor time of the agent and of containerd so far.
func (b *bench) cpu() (agent, daemon time.Duration, err error) {
	if agent, err = cpuOf(b.agent.Pid()); err != nil {
		agent = 0 // it is stopped
	}
	daemon, err = cpuOf(b.host.Pid())
	return agent, daemon, err
}

func cpuOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	user, err := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// exits kills containers from outside, one at a time, with many pods around.
func (b *bench) exits(ctx context.Context) error {
	const others, kills = 20, 100
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	var took []time.Duration
	// Each of the pods is killed a few times only, within the first restart.
	for round := 0; len(took) < kills; round++ {
		if _, err := p.burst(ctx, others, 1, "sleep", "1h"); err != nil {
			return err
		}
		for i := range others {
			name := fmt.Sprintf("p%03d", i)
			pid, err := b.pidOf(ctx, name)
			if err != nil {
				return err
			}
			began := time.Now()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			err = p.until(ctx, 1, func(e nodeapi.PodEvent) bool {
				if e.Pod.Name != name || len(e.Pod.Status.ContainerStatuses) == 0 {
					return false
				}
				s := e.Pod.Status.ContainerStatuses[0]
				return s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
			})
			if err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		if _, err := p.end(ctx, others); err != nil {
			return err
		}
	}
	b.add("container exit -> status seen, p50", ms(quantile(took, 0.5)), "one event", "", "")
	b.add("container exit -> status seen, p99", ms(quantile(took, 0.99)), "one event", "", "<= 100 ms")
	return nil
}

// pidOf finds the process of a pod's container.
func (b *bench) pidOf(ctx context.Context, pod string) (int, error) {
	list, err := b.host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
		State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return 0, err
	}
	if len(list.Containers) != 1 {
		return 0, fmt.Errorf("%d running containers of pod %s", len(list.Containers), pod)
	}
	st, err := b.host.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(st.Info["info"], `"pid":`)
	if !ok {
		return 0, fmt.Errorf("the runtime does not tell the pid of %s", pod)
	}
	digits, _, _ := strings.Cut(rest, ",")
	return strconv.Atoi(strings.TrimSpace(digits))
}

// configMap changes a ConfigMap and waits for the file in the running pod.
func (b *bench) configMap(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	text := func(value string) string {
		pod := strings.Replace(manifest("p000", 1, "sleep", "1h"), "]}\n", "], volumeMounts: [{name: v, mountPath: /v}]}\n", 1)
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {key: " + value + "}\n---\n" + pod + "  volumes: [{name: v, configMap: {name: cm}}]\n"
	}
	if err := p.put("p000", text("v0")); err != nil {
		return err
	}
	if err := p.until(ctx, 1, running); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(b.agent.RootDir, "pods/*/volumes/kubernetes.io~configmap/v/key"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("not one projected file but %q", files)
	}
	var took []time.Duration
	for i := range 4 * *rounds {
		value := fmt.Sprintf("v%d", i+1)
		began := time.Now()
		if err := p.put("p000", text(value)); err != nil {
			return err
		}
		for deadline := began.Add(time.Minute); ; {
			now, err := os.ReadFile(files[0])
			if err == nil && string(now) == value {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the file has %q, not %q: %v", now, value, err) //nolint:errorlint // nil too
			}
			time.Sleep(time.Millisecond)
		}
		took = append(took, time.Since(began))
	}
	b.add("ConfigMap changed -> file in the pod, worst", ms(quantile(took, 1)), "-", "", "<= 500 ms")
	_, err = p.end(ctx, 1)
	return err
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

func ratio(a, b time.Duration) string { return fmt.Sprintf("%.2f x", float64(a)/float64(b)) }
