package main

import (
	"context"

	"berth/admission"
	"berth/agent/shutdown"
	"berth/internal/nodeconfig"
	nodeshutdown "berth/node/shutdown"
	"berth/nodeapi"
	"berth/systemd"
)

// newDrain creates the graceful node shutdown.
func (b *berth) newDrain() *shutdown.Manager {
	return shutdown.New(shutdown.Options{
		Groups: b.shutdownGroups(), Statuses: b.agent.StatusCache, TerminatePod: b.agent.ShutdownPod,
		OnStarted: b.shutdownStarted, FlushStatus: b.flush, Log: b.log,
	})
}

func (b *berth) shutdownGroups() []nodeshutdown.Group {
	c := b.config.Shutdown
	by := convertAll(c.ByPriority, func(p nodeconfig.PriorityGrace) nodeshutdown.Group {
		return nodeshutdown.Group{Priority: p.Priority, GracePeriod: p.Grace}
	})
	return nodeshutdown.Groups(c.GracePeriod, c.CriticalGracePeriod, by)
}

// shutdownStarted stops the admission of pods and updates the node status.
func (b *berth) shutdownStarted() {
	b.admissionNode.Update(func(n *admission.Node) { n.ShuttingDown = true })
	if b.cluster != nil {
		b.cluster.registration.Trigger()
	}
}

// shutdownCanceled resumes the admission of pods.
func (b *berth) shutdownCanceled() {
	b.drain.Cancel()
	b.admissionNode.Update(func(n *admission.Node) { n.ShuttingDown = false })
	if b.cluster != nil {
		b.cluster.registration.Trigger()
	}
}

// shuttingDown reports whether the agent was started during a system shutdown. It starts no pods
// then.
func (b *berth) shuttingDown(ctx context.Context) bool {
	return len(b.shutdownGroups()) > 0 && systemd.ShutdownInProgress(ctx)
}

// flush waits until the final pod statuses and the node status were sent, with a timeout. The rest
// is sent after the reboot.
func (b *berth) flush(ctx context.Context) {
	if b.cluster == nil {
		return
	}
	shutdown.AwaitReported(ctx, func() bool {
		return b.cluster.statusManager.Idle() && b.cluster.registration.StatusSynced()
	})
}

// watchShutdown delays a system shutdown until the pods have terminated, if possible.
func (b *berth) watchShutdown(ctx context.Context) {
	groups := b.shutdownGroups()
	if len(groups) == 0 {
		b.removeShutdownDelay(ctx)
		return
	}
	systemd.WatchShutdown(ctx, systemd.ShutdownOptions{
		DelayNeeded: shutdown.DelayNeeded(groups), DropInDir: systemd.LogindDropInDir, Log: b.log,
		OnCancel: b.shutdownCanceled,
		Drain:    func(ctx context.Context) { _, _ = b.drain.Run(ctx, ctx) }, // fails only if ctx ends
	})
}

// removeShutdownDelay removes the shutdown delay that an earlier configuration has set.
func (b *berth) removeShutdownDelay(ctx context.Context) {
	removed, err := systemd.RemoveInhibitDelay(ctx, systemd.LogindDropInDir)
	if err != nil {
		file := systemd.InhibitDelayFile(systemd.LogindDropInDir)
		b.log.Warn("shutdown delay configured for logind could not be removed", "path", file, "err", err)
	} else if removed {
		b.log.Info("shutdown delay of logind restored to its default")
	}
}

// drainNode handles the request of the drain unit.
func (b *berth) drainNode(ctx context.Context) (out nodeapi.DrainResult, err error) {
	if len(b.shutdownGroups()) == 0 {
		out.SkipReason = "neither shutdownGracePeriod nor shutdownGracePeriodByPodPriority is set"
		return out, nil
	}
	r, err := b.drain.Run(ctx, b.serveCtx)
	out.Pods, out.NotTerminated, out.Duration = r.Pods, r.Overdue, r.Duration
	return out, err
}
