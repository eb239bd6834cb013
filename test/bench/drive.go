package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/images"
)

// pods creates pods through manifest files and watches them over the agent's socket.
type pods struct {
	b      *bench
	client *nodeapi.Client
	events chan nodeapi.PodEvent
	cancel context.CancelFunc
	done   chan error
}

func (b *bench) newPods(ctx context.Context) (*pods, error) {
	client, err := nodeapi.Dial(b.agent.Socket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &pods{b: b, client: client, events: make(chan nodeapi.PodEvent, 4096), cancel: cancel,
		done: make(chan error, 1)}
	go func() {
		p.done <- client.WatchPods(ctx, nodeapi.PodsRequest{}, func(e nodeapi.PodEvent) error {
			p.events <- e
			return nil
		})
	}()
	for e := range p.events {
		if e.Type == nodeapi.Synced {
			return p, nil
		}
	}
	return p, nil
}

// close stops the watch. It may be called twice and on nil.
func (p *pods) close() {
	if p == nil || p.client == nil {
		return
	}
	p.cancel()
	go func() { // unblock a pending send
		for range p.events {
		}
	}()
	<-p.done
	close(p.events)
	p.client.Close()
	p.client = nil
}

// manifest returns a pod with one container. args are the arguments of the test image.
func manifest(name string, args ...string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: %d
  containers:
  - {name: c, image: %q, args: [%s]}
`, name, grace, images.TestboxRef, strings.Join(quoted, ", "))
}

// writeManifest writes a manifest atomically.
func (p *pods) writeManifest(name, text string) error {
	path := filepath.Join(p.b.agent.ManifestDir, name+".yaml")
	tmp := filepath.Join(p.b.agent.ManifestDir, "."+name+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (p *pods) remove(name string) error {
	return os.Remove(filepath.Join(p.b.agent.ManifestDir, name+".yaml"))
}

// waitFor receives events until cond has been true for n different pods.
func (p *pods) waitFor(ctx context.Context, n int, cond func(nodeapi.PodEvent) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	matched := map[string]bool{}
	for len(matched) < n {
		select {
		case e := <-p.events:
			if e.Pod != nil && cond(e) {
				matched[e.Pod.Name] = true
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods: %w", len(matched), n, ctx.Err())
		}
	}
	return nil
}

func running(e nodeapi.PodEvent) bool {
	return e.Type != nodeapi.Deleted && e.Pod.Status.Phase == corev1.PodRunning
}

func deleted(e nodeapi.PodEvent) bool { return e.Type == nodeapi.Deleted }

// grace is the termination grace period of the pods in seconds.
const grace = 1

// burst creates n pods at once and returns the time until the last one runs.
func (p *pods) burst(ctx context.Context, n int, args ...string) (time.Duration, error) {
	start := time.Now()
	for i := range n {
		if err := p.writeManifest(fmt.Sprintf("p%03d", i), manifest(fmt.Sprintf("p%03d", i), args...)); err != nil {
			return 0, err
		}
	}
	err := p.waitFor(ctx, n, running)
	return time.Since(start), err
}

// deleteBurst deletes the n pods of a burst at once and returns the time until all are deleted.
func (p *pods) deleteBurst(ctx context.Context, n int) (time.Duration, error) {
	start := time.Now()
	for i := range n {
		if err := p.remove(fmt.Sprintf("p%03d", i)); err != nil {
			return 0, err
		}
	}
	err := p.waitFor(ctx, n, deleted)
	return time.Since(start), err
}

func median(d []time.Duration) time.Duration { return quantile(d, 0.5) }

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
