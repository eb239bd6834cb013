package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/systemd"
)

// runWatchdog feeds the service manager's watchdog, if it has one for this process, until ctx
// ends: as long as the server answers.
func runWatchdog(ctx context.Context, manager systemd.Notifier, answers func(context.Context) error, log *slog.Logger) {
	dog, err := systemd.WatchdogFromEnvironment()
	if err != nil {
		log.Warn("watchdog", "error", err)
		return
	}
	if dog.Interval == 0 {
		return
	}
	dog.Notify, dog.Log, dog.HealthyStatus = manager.Notify, log, "serves the API"
	var loops systemd.LoopMonitor
	api := loops.Watch("the API", 2*dog.Interval) // a busy machine may be slow
	var asking sync.WaitGroup
	asking.Go(func() { probeLiveness(ctx, dog.Interval/4, answers, api.Beat) })
	dog.Run(ctx, loops.Healthy)
	asking.Wait()
}

// probeLiveness asks again and again until ctx ends, and tells of each answer. None has come
// when the server has had twice as long for it as lies between two questions.
func probeLiveness(ctx context.Context, every time.Duration, answers func(context.Context) error, answered func()) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		asked, cancel := context.WithTimeout(ctx, 2*every)
		if answers(asked) == nil {
			answered()
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
