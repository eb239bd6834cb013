package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri/crilog"
	"berth/nodeapi"
)

// rotateLogs rotates the logs of running containers until ctx ends.
func (b *berth) rotateLogs(ctx context.Context) {
	c := b.config.Logs
	changed, stop := b.agent.StatusCache.Subscribe()
	defer stop()
	r := &crilog.Rotator{
		MaxSize: c.MaxSize, MaxFiles: c.MaxFiles, Workers: c.MaxWorkers, CompressDelay: time.Second,
		Interval: c.MonitorInterval,
		Now:      time.Now, Logs: b.runningLogs, Changed: changed, OnRotated: b.metrics.CountLogRotations,
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

func (b *berth) runningLogs() (logs []crilog.Log) {
	for _, s := range b.agent.StatusCache.List() {
		for _, k := range s.Observed.Containers {
			if k.State != plan.Running || k.LogPath == "" {
				continue
			}
			uid := s.Pod.UID
			logs = append(logs, crilog.Log{
				Path: k.LogPath,
				// A started rotation is completed. The call has its own timeout.
				Reopen: func() error { return b.runtime.client.ReopenLog(context.Background(), k.ID) },
				OnError: func(err error) {
					if b.agent.StatusCache.IsLive(uid, k.ID) {
						b.log.Warn(
							"container log rotation failed",
							"containerName",
							k.Name,
							"containerID",
							k.ID,
							"err",
							err,
						)
					}
				},
			})
		}
	}
	return logs
}

// logCollector returns the garbage collection of orphaned logs, which runs once a minute as
// upstream.
func (b *berth) logCollector() *crilog.Collector {
	return &crilog.Collector{
		PodLogsDir: b.config.PodLogsDir, LinkDir: logLinks, Interval: time.Minute,
		MinAge: max(time.Minute, b.config.DeadContainers.MinAge),
		Owners: b.logOwners, Now: time.Now, OnCollected: b.logsCollected,
	}
}

// logOwners returns the owners of all logs in use. Before all desired pods are known, it returns an
// error.
func (b *berth) logOwners(ctx context.Context) (crilog.Owners, error) {
	if !b.agent.HasSynced() {
		return crilog.Owners{}, errors.New("not all desired pods are known yet")
	}
	uids, err := b.runtime.client.SandboxUIDs(ctx)
	if err != nil {
		return crilog.Owners{}, err
	}
	owners := crilog.Owners{Pods: uids, Logs: map[string]map[string]bool{}}
	for _, s := range b.agent.StatusCache.List() {
		uid := string(s.Pod.UID)
		owners.Pods[uid] = true
		if s.Syncs == 0 { // not observed yet
			continue
		}
		logs := map[string]bool{}
		for _, k := range s.Observed.Containers {
			logs[k.LogPath] = true
		}
		owners.Logs[uid] = logs
	}
	return owners, nil
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
	return b.writeLog(ctx, s, k, req, !req.Previous, stdout, stderr)
}

// writeLog writes the log of a container instance and, if req.Follow and laterRuns are set, the logs of
// later instances.
func (b *berth) writeLog(
	ctx context.Context,
	s *status.Snapshot,
	k plan.Container,
	req nodeapi.LogRequest,
	laterRuns bool,
	stdout, stderr io.Writer,
) error {
	o := crilog.Options{
		Path: k.LogPath, Follow: req.Follow, Tail: req.Tail, Since: req.SinceTime, Timestamps: req.Timestamps,
		Stdout: stdout, Stderr: stderr,
	}
	if req.Since > 0 {
		o.Since = time.Now().Add(-req.Since)
	}
	if req.LimitBytes != nil {
		o.LimitBytes = *req.LimitBytes
	}
	if !req.Follow {
		return crilog.Read(ctx, o)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	o.Done = b.terminated(ctx, &watches, s.Pod.UID, k.ID)
	if laterRuns {
		o.NextRun = func(ctx context.Context) (string, <-chan struct{}, bool) {
			next, more := b.agent.StatusCache.WaitForNextRun(ctx, s.Pod.UID, k)
			if !more {
				return "", nil, false
			}
			k = next
			return k.LogPath, b.terminated(ctx, &watches, s.Pod.UID, k.ID), true
		}
	}
	return crilog.Read(ctx, o)
}

// terminated returns a channel that is closed when a container has terminated or is unknown.
func (b *berth) terminated(ctx context.Context, watches *sync.WaitGroup, uid types.UID, id string) <-chan struct{} {
	done := make(chan struct{})
	changed, stop := b.agent.StatusCache.Subscribe()
	watches.Go(func() {
		defer stop()
		defer close(done)
		for b.agent.StatusCache.IsLive(uid, id) {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return done
}
