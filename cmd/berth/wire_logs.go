package main

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/cri/crilog"
)

// rotateLogs keeps the logs of running containers to their size.
func (b *berth) rotateLogs(ctx context.Context) {
	c := b.config.Logs
	if c.MaxSize < 0 {
		return
	}
	tick := time.NewTicker(c.MonitorInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range b.agent.Board.All() {
			for _, k := range s.Seen.Containers {
				if k.State == plan.Running && k.LogPath != "" {
					b.rotateLog(ctx, s.Pod.UID, k)
				}
			}
		}
	}
}

func (b *berth) rotateLog(ctx context.Context, uid types.UID, k plan.Container) {
	_, err := crilog.Rotate(k.LogPath, crilog.Rotation{
		MaxSize: b.config.Logs.MaxSize, MaxFiles: b.config.Logs.MaxFiles, Now: time.Now(),
		Reopen: func() error { return b.runtime.client.ReopenLog(ctx, k.ID) },
	})
	if err != nil && b.lives(uid, k.ID) {
		b.log.Warn("rotate a container's log", "container", k.Name, "id", k.ID, "err", err)
	}
}
