package main

import (
	"context"
	"time"

	"berth/admission"
	"berth/agent/shutdown"
	nodeshutdown "berth/node/shutdown"
	"berth/nodeapi"
	"berth/systemd"
)

// Times beside those of the pods: of what has to be told after the last of them.
const (
	toldWithin = 3 * time.Second
	toldEvery  = 50 * time.Millisecond
)

// newDrain is what ends the pods when the host goes down.
func (b *berth) newDrain() *shutdown.Manager {
	return shutdown.New(shutdown.Options{
		Groups: b.shutdownGroups(), Statuses: b.agent.StatusCache, TerminatePod: b.agent.ShutdownPod, OnStarted: b.goingDown, FlushStatus: b.flush, Log: b.log,
	})
}

func (b *berth) shutdownGroups() []nodeshutdown.Group {
	c := b.config.Shutdown
	var by []nodeshutdown.Group
	for _, p := range c.ByPriority {
		by = append(by, nodeshutdown.Group{Priority: p.Priority, GracePeriod: p.Grace})
	}
	return nodeshutdown.Groups(c.GracePeriod, c.CriticalGracePeriod, by)
}

// goingDown has the node take no more pods, and say so.
func (b *berth) goingDown() {
	b.offering.change(func(n *admission.Node) { n.ShuttingDown = true })
	if b.joined != nil {
		b.joined.presence.Trigger()
	}
}

// calledOff has the node take pods again.
func (b *berth) calledOff() {
	b.drain.Cancel()
	b.offering.change(func(n *admission.Node) { n.ShuttingDown = false })
	if b.joined != nil {
		b.joined.presence.Trigger()
	}
}

// goesDown reports whether the agent begins while the host goes down: then it starts
// no pod.
func (b *berth) goesDown(ctx context.Context) bool {
	return len(b.shutdownGroups()) > 0 && systemd.ShutdownInProgress(ctx)
}

// flush waits until the server knows how the pods ended and that the node goes down, or
// it takes too long: what it is not told now it is told after the boot.
func (b *berth) flush(ctx context.Context) {
	if b.joined == nil {
		return
	}
	for end := time.Now().Add(toldWithin); !(b.joined.posts.Idle() && b.joined.presence.StatusSynced()) && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(toldEvery):
		}
	}
}

// watchShutdown has the host's shutdown wait for the pods, where it can.
func (b *berth) watchShutdown(ctx context.Context) {
	groups := b.shutdownGroups()
	if len(groups) == 0 {
		if was, err := systemd.RemoveInhibitDelay(ctx, systemd.LogindDropInDir); err != nil {
			b.log.Warn("what logind was asked for by an earlier configuration is left", "file", systemd.InhibitDelayFile(systemd.LogindDropInDir), "err", err)
		} else if was {
			b.log.Info("logind waits no longer with a shutdown than without berth")
		}
		return
	}
	systemd.WatchShutdown(ctx, systemd.ShutdownOptions{
		DelayNeeded: nodeshutdown.TotalGracePeriod(groups) + time.Duration(len(groups))*shutdown.KillSlack + toldWithin,
		DropInDir:   systemd.LogindDropInDir, Log: b.log,
		OnCancel: b.calledOff,
		Drain:    func(ctx context.Context) { _, _ = b.drain.Run(ctx, ctx) }, // it fails only with ctx
	})
}

// drainNode answers the drain unit.
func (b *berth) drainNode(ctx context.Context) (out nodeapi.DrainResult, err error) {
	if len(b.shutdownGroups()) == 0 {
		out.SkipReason = "neither shutdownGracePeriod nor shutdownGracePeriodByPodPriority is set"
		return out, nil
	}
	r, err := b.drain.Run(ctx, b.life)
	out.Pods, out.NotTerminated, out.Duration = r.Pods, r.Overdue, r.Duration
	return out, err
}
