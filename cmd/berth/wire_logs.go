package main

import (
	"context"
	"io"
	"time"

	"berth/agent/podlogs"
	"berth/cri/crilog"
	"berth/internal/nodeconfig"
	"berth/nodeapi"
)

// newPodLogs connects the logs of containers to the pods.
func (b *berth) newPodLogs() *podlogs.Logs {
	return &podlogs.Logs{
		Statuses: b.agent.StatusCache, Ready: b.agent.HasSynced, Log: b.log,
		SandboxUIDs: b.runtime.client.SandboxUIDs, Owns: b.host.Owns, Reopen: b.runtime.client.ReopenLog,
	}
}

// rotateLogs rotates the logs of running containers until ctx ends.
func (b *berth) rotateLogs(ctx context.Context) {
	c := b.config.Logs
	changed, stop := b.agent.StatusCache.Subscribe()
	defer stop()
	r := &crilog.Rotator{
		MaxSize: c.MaxSize, MaxFiles: c.MaxFiles, Workers: c.MaxWorkers, CompressDelay: time.Second,
		Interval: c.MonitorInterval,
		Now:      time.Now, Logs: b.podLogs.Running, Changed: changed, OnRotated: b.metrics.CountLogRotations,
	}
	growth, err := crilog.NewInotifyWatcher()
	if err != nil {
		b.log.Warn("log file watch unavailable, polling every second", "err", err)
	} else {
		defer growth.Close()
		r.Growth = growth
	}
	r.Run(ctx)
}

// logCollector returns the garbage collection of orphaned logs, which runs once a minute as
// upstream.
func (b *berth) logCollector() *crilog.Collector {
	return &crilog.Collector{
		PodLogsDir: b.config.PodLogsDir, LinkDir: nodeconfig.LogLinksDir, Interval: time.Minute,
		MinAge: max(time.Minute, b.config.DeadContainers.MinAge),
		Owners: b.podLogs.Owners, Now: time.Now, OnCollected: b.logsCollected,
	}
}

func (b *berth) logsCollected(g crilog.Collected, err error) {
	b.metrics.CountGarbageCollected("pod_logs", g.PodDirs)
	b.metrics.CountGarbageCollected("container_logs", g.Logs)
	b.metrics.CountGarbageCollected("log_link", g.Links)
	b.metrics.CountLogBytesFreed(g.Bytes)
	if err != nil {
		b.log.Warn("log garbage collection failed", "err", err)
	}
	if g.PodDirs > 0 {
		b.log.Info("orphaned pod logs removed", "pods", g.PodDirs, "bytes", g.Bytes)
	}
}

func (b *berth) logs(ctx context.Context, req nodeapi.LogRequest, stdout, stderr io.Writer) error {
	s, err := b.find(ctx, req.Namespace, req.Pod)
	if err != nil {
		return err
	}
	k, err := s.Instance(req.Container, req.Previous)
	if err != nil {
		return badRequest("%s", err)
	}
	return b.podLogs.Write(ctx, s.Pod.UID, k, logOptions(req, stdout, stderr), !req.Previous)
}

func logOptions(req nodeapi.LogRequest, stdout, stderr io.Writer) crilog.Options {
	o := crilog.Options{
		Follow: req.Follow, Tail: req.Tail, Since: req.SinceTime, Timestamps: req.Timestamps,
		Stdout: stdout, Stderr: stderr,
	}
	if req.Since > 0 {
		o.Since = time.Now().Add(-req.Since)
	}
	if req.LimitBytes != nil {
		o.LimitBytes = *req.LimitBytes
	}
	return o
}
