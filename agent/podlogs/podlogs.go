package podlogs

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri/crilog"
)

// Logs are the logs of the pods of a node. Every field is required.
type Logs struct {
	Statuses    *status.Cache
	Ready       func() bool                                         // all desired pods are known
	SandboxUIDs func(context.Context) (map[string]bool, error)      // UIDs of the pods with a sandbox
	Owns        func(types.UID) bool                                // berth created the pod
	Reopen      func(ctx context.Context, containerID string) error // makes the runtime open the log again
	Log         *slog.Logger
}

// Running returns the logs of the running containers.
func (l *Logs) Running() (logs []crilog.Log) {
	for _, s := range l.Statuses.List() {
		for _, k := range s.Observed.Containers {
			if k.State == plan.Running && k.LogPath != "" {
				logs = append(logs, l.running(s.Pod.UID, k))
			}
		}
	}
	return logs
}

func (l *Logs) running(uid types.UID, k plan.Container) crilog.Log {
	return crilog.Log{
		Path: k.LogPath,
		// A started rotation is completed. The call has its own timeout.
		Reopen: func() error { return l.Reopen(context.Background(), k.ID) },
		OnError: func(err error) {
			if l.Statuses.IsLive(uid, k.ID) {
				l.Log.Warn("container log rotation failed", "containerName", k.Name, "containerID", k.ID, "err", err)
			}
		},
	}
}

// Owners returns the owners of all logs in use. Before all desired pods are known, it returns an
// error.
func (l *Logs) Owners(ctx context.Context) (crilog.Owners, error) {
	if !l.Ready() {
		return crilog.Owners{}, errors.New("not all desired pods are known yet")
	}
	uids, err := l.SandboxUIDs(ctx)
	if err != nil {
		return crilog.Owners{}, err
	}
	owners := crilog.Owners{
		Pods: uids, Logs: map[string]map[string]bool{}, Owns: func(uid string) bool { return l.Owns(types.UID(uid)) },
	}
	for _, s := range l.Statuses.List() {
		uid := string(s.Pod.UID)
		owners.Pods[uid] = true
		if s.Syncs == 0 || !l.Owns(s.Pod.UID) { // not observed yet, or the host has a foreign pod with this UID
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

// RemoveRotated deletes the rotated logs of all containers.
func (l *Logs) RemoveRotated() error {
	var errs []error
	for _, s := range l.Statuses.List() {
		for _, k := range s.Observed.Containers {
			if k.LogPath != "" {
				errs = append(errs, crilog.RemoveRotated(k.LogPath))
			}
		}
	}
	return errors.Join(errs...)
}

// Write writes the log of a container instance. With o.Follow it returns when the instance has
// terminated or, if laterRuns is set, when the container does not run again. Path, Done and NextRun
// of o are set by Write.
func (l *Logs) Write(ctx context.Context, uid types.UID, k plan.Container, o crilog.Options, laterRuns bool) error {
	o.Path = k.LogPath
	if !o.Follow {
		return crilog.Read(ctx, o)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	o.Done = l.terminated(ctx, &watches, uid, k.ID)
	if laterRuns {
		o.NextRun = func(ctx context.Context) (string, <-chan struct{}, bool) {
			next, more := l.Statuses.WaitForNextRun(ctx, uid, k)
			if !more {
				return "", nil, false
			}
			k = next
			return k.LogPath, l.terminated(ctx, &watches, uid, k.ID), true
		}
	}
	return crilog.Read(ctx, o)
}

// terminated returns a channel that is closed when a container has terminated or is unknown.
func (l *Logs) terminated(ctx context.Context, watches *sync.WaitGroup, uid types.UID, id string) <-chan struct{} {
	done := make(chan struct{})
	changed, stop := l.Statuses.Subscribe()
	watches.Go(func() {
		defer stop()
		defer close(done)
		for l.Statuses.IsLive(uid, id) {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return done
}
