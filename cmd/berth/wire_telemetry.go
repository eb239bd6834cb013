package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/agent/allocator"
	"berth/agent/metrics"
	"berth/internal/telemetry"
	"berth/node/stats"
	"berth/systemd"
)

const (
	statusWaitingForRuntime = "waiting for the container runtime"
	startTimeout            = 2 * time.Minute // maximum time to report startup as in progress
)

// notify reports readiness, status and progress to systemd.
func (b *berth) notify(ctx context.Context) {
	var watchdog sync.WaitGroup
	defer watchdog.Wait()
	watchdog.Go(func() { b.watchdog.Run(ctx, b.loops.Healthy) })
	reporter := systemd.StateReporter{
		Ready: b.agent.Ready(), StartTimeout: startTimeout, StartStatus: statusWaitingForRuntime,
		Healthy: b.loops.Healthy, Status: b.statusLine, Subscribe: b.agent.StatusCache.Subscribe,
		Notify: b.notifySystemd,
		OnStartTimeout: func() {
			b.log.Warn("reporting readiness to systemd without the container runtime", "after", startTimeout)
		},
	}
	reporter.Run(ctx)
	if !errors.Is(context.Cause(ctx), errReload) { // the process continues
		b.notifySystemd(systemd.Stopping)
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
	line := b.agent.StatusCache.Count().String()
	if bad, _ := b.store.Degraded(); bad {
		line += ", local store is in memory only"
	}
	return line
}

// metricsState returns what is measured at every scrape.
func (b *berth) metricsState() telemetry.State {
	s := metrics.State(b.agent.StatusCache.Count())
	s.InvalidManifests = b.invalidManifests()
	s.StoreDegraded, _ = b.store.Degraded()
	s.Claims = convertAll(b.stats.ClaimStats(), claimState)
	if j := b.cluster; j != nil {
		s.ClientCertificate, s.ServingCertificate = j.identity.Certificate.Expires(), j.serving.Expires()
	}
	return s
}

// claimState converts the usage of the volume of a claim for metrics.
func claimState(c stats.ClaimStats) telemetry.ClaimState {
	return telemetry.ClaimState{
		Namespace: c.Namespace, Claim: c.Claim, Capacity: c.Capacity, Available: c.Available, Used: c.Used,
		Inodes: c.Inodes, InodesFree: c.InodesFree, InodesUsed: c.InodesUsed, Abnormal: c.Abnormal,
	}
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}
