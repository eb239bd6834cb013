package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"google.golang.org/grpc"

	"berth/agent"
	"berth/agent/allocator"
	"berth/systemd"
)

// measureCall surrounds every call to the runtime: metrics, the pod's timeline,
// and a trace span if somebody collects them.
func (b *berth) measureCall(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	verb := path.Base(method)
	end := agent.RuntimeCallSpan(ctx, verb)
	began := time.Now()
	var err error
	if b.traces.On() {
		spanCtx, span := b.traces.Tracer("berth/cri").Start(ctx, verb)
		span.SetAttributes(attribute.String("berth.stage", agent.StageFromContext(ctx)))
		err = invoke(spanCtx, method, req, reply, conn, opts...)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	} else {
		err = invoke(ctx, method, req, reply, conn, opts...)
	}
	if strings.HasPrefix(method, "/runtime.v1.") { // containerd's own services have names of their own
		b.metrics.ObserveRuntimeOperation(snake(verb), time.Since(began), err)
	}
	end(err)
	return err
}

// snake turns RunPodSandbox into run_podsandbox, the form of upstream's
// operation label, which knows no word boundary inside PodSandbox.
func snake(verb string) string {
	verb = strings.Replace(verb, "PodSandbox", "Podsandbox", 1)
	var s strings.Builder
	for i, r := range verb {
		if unicode.IsUpper(r) && i > 0 {
			s.WriteByte('_')
		}
		s.WriteRune(unicode.ToLower(r))
	}
	return s.String()
}

const (
	waitsForRuntime = "waiting for the container runtime"
	startBound      = 2 * time.Minute // of a start that waits for it
)

// notify tells systemd that the agent is ready, what it is doing, and that it
// makes progress.
func (b *berth) notify(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.watchdog.Run(ctx, b.loops.Healthy)
	}()
	defer func() { <-done }()
	defer func() {
		if !errors.Is(context.Cause(ctx), errReload) { // it goes on as the same process
			b.tellSystemd(systemd.Stopping)
		}
	}()
	b.tellSystemd(systemd.Status(waitsForRuntime))
	if !systemd.AwaitStart(ctx, b.agent.Ready(), startBound, b.loops.Healthy, b.tellSystemd) && ctx.Err() == nil {
		b.log.Warn("the start is called over without the container runtime, which is waited for on", "after", startBound)
		b.tellSystemd(systemd.Ready)
	}
	select {
	case <-ctx.Done():
		return
	case <-b.agent.Ready():
	}
	b.tellSystemd(systemd.Ready, systemd.Status(b.statusLine()))
	changed, stop := b.agent.StatusCache.Changes()
	defer stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if line := b.statusLine(); line != last {
			last = line
			b.tellSystemd(systemd.Status(line))
		}
		select { // a busy node changes often
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

const storeLoop = "local store"

// pulse is a main loop's sign of progress. The loop is watched from its first one
// on, for it may have to wait for the runtime before: it may be quiet for twice
// as long as the service manager waits for the agent.
func (b *berth) pulse(name string) {
	loop, known := b.pulses.Load(name)
	if !known {
		quiet := 2 * b.watchdog.Interval
		if name == storeLoop { // it waits for the disk, which may take long without a hang
			quiet *= 5
		}
		loop = b.loops.Watch(name, max(quiet, 4*allocator.PulseEvery))
		b.pulses.Store(name, loop)
	}
	loop.(*systemd.Loop).Beat() //nolint:errcheck // pulses has nothing else
	stall(name)
}

func (b *berth) tellSystemd(states ...systemd.State) {
	if err := systemd.Notify(states...); err != nil {
		b.log.Debug("service manager", "err", err)
	}
}

func (b *berth) statusLine() string {
	phases := map[string]int{}
	containers := map[string]int{}
	all := b.agent.StatusCache.All()
	running := 0
	for _, s := range all {
		phases[string(s.Status.Phase)]++
		if len(s.Seen.Sandboxes) > 0 && s.Seen.Sandboxes[0].Ready {
			running++
		}
		for _, k := range s.Seen.Containers {
			containers[k.State.String()]++
		}
	}
	b.metrics.SetPods(len(all), running)
	b.metrics.SetContainers(containers)
	line := fmt.Sprintf("%d pods: %d running, %d pending, %d succeeded, %d failed",
		len(all), phases["Running"], phases["Pending"], phases["Succeeded"], phases["Failed"])
	if bad, _ := b.store.Degraded(); bad {
		line += "; the local store is in memory only"
	}
	return line
}

// kubernetesVersion is the release whose API types are linked in.
func kubernetesVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "k8s.io/api" {
			return "v1" + strings.TrimPrefix(m.Version, "v0")
		}
	}
	return ""
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

// kubernetesRelease is that release as major.minor.
func kubernetesRelease() string {
	release := strings.TrimPrefix(kubernetesVersion(), "v")
	if parts := strings.SplitN(release, ".", 3); len(parts) == 3 {
		release = parts[0] + "." + parts[1]
	}
	return release
}
