package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/nodeapi"
)

// exits kills containers one at a time on a node with many pods.
func (b *bench) exits(ctx context.Context) error {
	const others, kills = 20, 100
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	stopped, stop := b.watchStops(ctx)
	defer stop()
	var took, limit []time.Duration
	// New pods in each round keep the restart back-off short.
	for round := 0; len(took) < kills; round++ {
		if _, err := p.burst(ctx, others, "sleep", "1h"); err != nil {
			return err
		}
		for i := range others {
			name := fmt.Sprintf("p%03d", i)
			pid, err := b.pidOf(ctx, name)
			if err != nil {
				return err
			}
			for len(stopped) > 0 {
				<-stopped // events of the previous round
			}
			start := time.Now()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			err = p.waitFor(ctx, 1, func(e nodeapi.PodEvent) bool {
				if e.Pod.Name != name || len(e.Pod.Status.ContainerStatuses) == 0 {
					return false
				}
				s := e.Pod.Status.ContainerStatuses[0]
				return s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
			})
			if err != nil {
				return err
			}
			took = append(took, time.Since(start))
			select {
			case at := <-stopped:
				limit = append(limit, at.Sub(start))
			case <-time.After(time.Second): // the runtime sends no events
			}
		}
		if _, err := p.deleteBurst(ctx, others); err != nil {
			return err
		}
	}
	for _, q := range []struct {
		name, goal string
		at         float64
	}{{"p50", "", 0.5}, {"p99", "<= 100 ms", 0.99}} {
		event, over := "no events", ""
		if len(limit) > 0 {
			event, over = ms(quantile(limit, q.at)), ratio(quantile(took, q.at), quantile(limit, q.at))
		}
		b.add("container exit -> status observed, "+q.name, ms(quantile(took, q.at)), event, over, q.goal)
	}
	return nil
}

// watchStops sends the arrival times of the runtime's own container stop events, the lower bound for the
// agent.
func (b *bench) watchStops(ctx context.Context) (at <-chan time.Time, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	out, done := make(chan time.Time, 1000), make(chan struct{})
	go func() {
		defer close(done)
		stream, err := b.host.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		for err == nil {
			var e *runtimeapi.ContainerEventResponse
			if e, err = stream.Recv(); err == nil &&
				e.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				select {
				case out <- time.Now():
				case <-ctx.Done():
				}
			}
		}
	}()
	return out, func() { cancel(); <-done }
}

// pidOf returns the process ID of a pod's only running container.
func (b *bench) pidOf(ctx context.Context, pod string) (int, error) {
	list, err := b.host.Runtime.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod},
			State:         &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
	if err != nil {
		return 0, err
	}
	if len(list.Containers) != 1 {
		return 0, fmt.Errorf("got %d running containers of pod %s, want 1", len(list.Containers), pod)
	}
	st, err := b.host.Runtime.ContainerStatus(ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(st.Info["info"], `"pid":`)
	if !ok {
		return 0, fmt.Errorf("no pid in the container status of %s", pod)
	}
	digits, _, _ := strings.Cut(rest, ",")
	return strconv.Atoi(strings.TrimSpace(digits))
}

// configMap measures the time from the change of a ConfigMap to the changed file in a running pod.
func (b *bench) configMap(ctx context.Context) error {
	p, err := b.newPods(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	text := func(value string) string {
		pod := strings.Replace(manifest("p000", "sleep", "1h"), "]}\n",
			"], volumeMounts: [{name: v, mountPath: /v}]}\n", 1)
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cm}\ndata: {key: " + value + "}\n---\n" + pod +
			"  volumes: [{name: v, configMap: {name: cm}}]\n"
	}
	if err := p.writeManifest("p000", text("v0")); err != nil {
		return err
	}
	if err := p.waitFor(ctx, 1, running); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(b.agent.RootDir, "pods/*/volumes/kubernetes.io~configmap/v/key"))
	if err != nil {
		return err
	}
	if len(files) != 1 {
		return fmt.Errorf("got projected files %q, want one", files)
	}
	var took []time.Duration
	for i := range 4 * *rounds {
		value := fmt.Sprintf("v%d", i+1)
		start := time.Now()
		if err := p.writeManifest("p000", text(value)); err != nil {
			return err
		}
		if err := appears(files[0], value, start.Add(time.Minute)); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	b.add("ConfigMap changed -> file in the pod, worst", ms(quantile(took, 1)), "-", "", "<= 500 ms")
	_, err = p.deleteBurst(ctx, 1)
	return err
}

// appears waits until a file has the wanted content.
func appears(file, want string, deadline time.Time) error {
	for {
		now, err := os.ReadFile(file)
		if err == nil && string(now) == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("file content: got %q, want %q: %v", now, want, err) //nolint:errorlint // nil too
		}
		time.Sleep(time.Millisecond)
	}
}
