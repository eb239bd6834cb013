package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/systemd"
)

// runWatchdog notifies the service manager's watchdog while the server is live, until ctx is done.
// It returns at once if no watchdog is configured for this process.
func runWatchdog(ctx context.Context, manager systemd.Notifier, probe func(context.Context) error, log *slog.Logger) {
	dog, err := systemd.WatchdogFromEnvironment()
	if err != nil {
		log.Warn("watchdog disabled: invalid environment", "err", err)
		return
	}
	if dog.Interval == 0 {
		return
	}
	dog.Notify, dog.Log, dog.HealthyStatus = manager.Notify, log, "serving the API"
	var loops systemd.LoopMonitor
	api := loops.Watch("the API", 2*dog.Interval) // A loaded machine may be slow.
	var probing sync.WaitGroup
	probing.Go(func() { probeLiveness(ctx, dog.Interval/4, probe, api.Beat) })
	dog.Run(ctx, loops.Healthy)
	probing.Wait()
}

// probeLiveness probes periodically until ctx is done and reports each success. A probe times out
// after twice the period.
func probeLiveness(ctx context.Context, every time.Duration, probe func(context.Context) error, onSuccess func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		probeCtx, cancel := context.WithTimeout(ctx, 2*every)
		if probe(probeCtx) == nil {
			onSuccess()
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
