package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	host "berth/node"
	"berth/nodeapi"
	"berth/test/hosts"
)

// eviction measures the time from memory pressure on the node to the first SIGTERM, from the timestamps
// of the pod's log lines "allocated" and "got TERM". The pods have 256 MiB allocatable memory, of which
// 100 MiB must stay free.
func (b *bench) eviction(ctx context.Context) (err error) {
	whole, err := host.ReadMemory()
	if err != nil {
		return err
	}
	restore, err := b.replaceAgent(ctx, hosts.AgentOptions{Name: "short", Config: map[string]any{
		"systemReserved":                   map[string]string{"memory": strconv.FormatUint(whole.Total-256<<20, 10)},
		"evictionHard":                     map[string]string{"allocatableMemory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "0s",
	}})
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, b.agent.Log())
		}
		err = errors.Join(err, restore(ctx))
	}()
	if err != nil {
		return err
	}
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	var took []time.Duration
	for i := range *rounds {
		name := fmt.Sprintf("hog-%d", i)
		// A pod with a memory request is admitted while the pressure of the previous round lasts.
		text := strings.Replace(manifest(name, "on-term", "0s", ",", "alloc", "200", ",", "sleep", "1h"), "]}\n",
			"], resources: {requests: {memory: 8Mi}}}\n", 1)
		if err := p.writeManifest(name, text); err != nil {
			return err
		}
		failed := func(e nodeapi.PodEvent) bool { return e.Pod.Name == name && e.Pod.Status.Phase == corev1.PodFailed }
		if err := p.waitFor(ctx, 1, failed); err != nil {
			return err
		}
		d, err := b.between(name, "allocated", "got TERM")
		if err != nil {
			return err
		}
		took = append(took, d)
		if err := p.remove(name); err != nil {
			return err
		}
		if err := p.waitFor(ctx, 1, deleted); err != nil {
			return err
		}
	}
	b.add("node short of memory -> first SIGTERM, median / worst", ms(median(took))+" / "+ms(quantile(took, 1)), "-",
		"", "reported")
	return nil
}

// replaceAgent stops the current agent and starts another one until restore is called.
func (b *bench) replaceAgent(ctx context.Context, o hosts.AgentOptions) (restore func(context.Context) error,
	err error) {
	original := b.agent
	restore = func(ctx context.Context) (err error) {
		if b.agent != original {
			err = b.agent.Stop(ctx)
		}
		b.agent = original
		return errors.Join(err, original.Start(ctx), original.WaitReady(ctx))
	}
	if err := original.Stop(ctx); err != nil {
		return restore, err
	}
	o.Binary, o.Host = original.Binary, b.host
	other, err := hosts.StartAgent(ctx, o)
	if err != nil {
		return restore, err
	}
	b.agent = other
	return restore, other.WaitReady(ctx)
}

// between returns the time between two log lines of a pod's container c, from the timestamps of the
// runtime.
func (b *bench) between(pod, first, then string) (time.Duration, error) {
	files, err := filepath.Glob(filepath.Join(b.agent.LogsDir, "default_"+pod+"_*", "c", "0.log"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("got logs %[2]q of pod %[1]s, want one: %[3]w", pod, files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return 0, err
	}
	var at [2]time.Time
	for line := range strings.Lines(string(text)) {
		stamp, rest, _ := strings.Cut(line, " ")
		for i, want := range []string{first, then} {
			if strings.Contains(rest, " F "+want) {
				if at[i], err = time.Parse(time.RFC3339Nano, stamp); err != nil {
					return 0, err
				}
			}
		}
	}
	if at[0].IsZero() || at[1].IsZero() {
		return 0, fmt.Errorf("a line is missing in the log of %s:\n%s", pod, text)
	}
	return at[1].Sub(at[0]), nil
}
