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

// eviction takes how long it is from a node's being short of memory to the first
// SIGTERM, by the times of the pod's own log lines: its memory is all taken, TERM
// has come. The pods of the agent have 256 MiB, of which 100 must be free.
func (b *bench) eviction(ctx context.Context) (err error) {
	whole, err := host.ReadMemory()
	if err != nil {
		return err
	}
	back, err := b.instead(ctx, hosts.AgentOptions{Name: "short", Config: map[string]any{
		"systemReserved":                   map[string]string{"memory": strconv.FormatUint(whole.Total-256<<20, 10)},
		"evictionHard":                     map[string]string{"allocatableMemory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "0s",
	}})
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, b.agent.Log())
		}
		err = errors.Join(err, back(ctx))
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
		// What requests memory is let in while the pressure of the one before lasts.
		text := strings.Replace(manifest(name, "on-term", "0s", ",", "alloc", "200", ",", "sleep", "1h"), "]}\n", "], resources: {requests: {memory: 8Mi}}}\n", 1)
		if err := p.put(name, text); err != nil {
			return err
		}
		failed := func(e nodeapi.PodEvent) bool { return e.Pod.Name == name && e.Pod.Status.Phase == corev1.PodFailed }
		if err := p.until(ctx, 1, failed); err != nil {
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
		if err := p.until(ctx, 1, gone); err != nil {
			return err
		}
	}
	b.add("node short of memory -> first SIGTERM, median / worst", ms(median(took))+" / "+ms(quantile(took, 1)), "-", "", "reported")
	return nil
}

// instead stops the bench's agent and starts another in its place until back is called.
func (b *bench) instead(ctx context.Context, o hosts.AgentOptions) (back func(context.Context) error, err error) {
	own := b.agent
	back = func(ctx context.Context) (err error) {
		if b.agent != own {
			err = b.agent.Stop(ctx)
		}
		b.agent = own
		return errors.Join(err, own.Start(ctx), own.WaitReady(ctx))
	}
	if err := own.Stop(ctx); err != nil {
		return back, err
	}
	o.Binary, o.Host = own.Binary, b.host
	other, err := hosts.StartAgent(ctx, o)
	if err != nil {
		return back, err
	}
	b.agent = other
	return back, other.WaitReady(ctx)
}

// between is the time between two lines of a pod's container c, by the runtime's
// own clock in its log.
func (b *bench) between(pod, first, then string) (time.Duration, error) {
	files, err := filepath.Glob(filepath.Join(b.agent.LogsDir, "default_"+pod+"_*", "c", "0.log"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("not one log of %s but %q: %w", pod, files, err)
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
		return 0, fmt.Errorf("the log of %s lacks a line:\n%s", pod, text)
	}
	return at[1].Sub(at[0]), nil
}
