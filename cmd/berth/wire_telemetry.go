package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/agent/allocator"
	"berth/systemd"
)

const (
	statusWaitingForRuntime = "waiting for the container runtime"
	startTimeout            = 2 * time.Minute // maximum time to report startup as in progress
)

// notify reports readiness, status and progress to systemd.
func (b *berth) notify(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.watchdog.Run(ctx, b.loops.Healthy)
	}()
	defer func() { <-done }()
	defer func() {
		if !errors.Is(context.Cause(ctx), errReload) { // the process continues
			b.notifySystemd(systemd.Stopping)
		}
	}()
	b.notifySystemd(systemd.Status(statusWaitingForRuntime))
	if !systemd.AwaitStart(ctx, b.agent.Ready(), startTimeout, b.loops.Healthy, b.notifySystemd) && ctx.Err() == nil {
		b.log.Warn("reporting readiness to systemd without the container runtime", "after", startTimeout)
		b.notifySystemd(systemd.Ready)
	}
	select {
	case <-ctx.Done():
		return
	case <-b.agent.Ready():
	}
	b.notifySystemd(systemd.Ready, systemd.Status(b.statusLine()))
	changed, stop := b.agent.StatusCache.Subscribe()
	defer stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if line := b.statusLine(); line != last {
			last = line
			b.notifySystemd(systemd.Status(line))
		}
		select { // limit updates on a busy node
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

const storeLoop = "local store"

// heartbeat reports progress of a main loop. Monitoring starts with the first call, because a loop may
// have to wait for the runtime before. The timeout is twice the watchdog interval of the service
// manager.
func (b *berth) heartbeat(name string) {
	loop, known := b.loopsByName.Load(name)
	if !known {
		timeout := 2 * b.watchdog.Interval
		if name == storeLoop { // disk I/O can block for a long time
			timeout *= 5
		}
		loop = b.loops.Watch(name, max(timeout, 4*allocator.HeartbeatInterval))
		b.loopsByName.Store(name, loop)
	}
	loop.(*systemd.Loop).Beat() //nolint:errcheck // loopsByName contains only loops
	hang(name)
}

func (b *berth) notifySystemd(states ...systemd.State) {
	if err := systemd.Notify(states...); err != nil {
		b.log.Debug("service manager notification failed", "err", err)
	}
}

func (b *berth) statusLine() string {
	n := b.agent.StatusCache.Count()
	b.metrics.SetPods(n.Pods, n.SandboxReady)
	b.metrics.SetContainers(n.Containers)
	line := n.String()
	if bad, _ := b.store.Degraded(); bad {
		line += ", local store is in memory only"
	}
	return line
}

// kubernetesVersion is the Kubernetes release of the linked API types.
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

// kubernetesRelease is the release as major.minor.
func kubernetesRelease() string {
	release := strings.TrimPrefix(kubernetesVersion(), "v")
	if parts := strings.SplitN(release, ".", 3); len(parts) == 3 {
		release = parts[0] + "." + parts[1]
	}
	return release
}
