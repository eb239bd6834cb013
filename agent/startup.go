package agent

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
)

// RuntimeNotReady is the reason of a pod while the runtime has not listed its pods.
const RuntimeNotReady = "RuntimeNotReady"

// startup publishes the desired pods while the runtime has not listed its pods yet.
// Workers start after that (A1).
type startup struct {
	mu    sync.Mutex
	done  bool
	since time.Time
	cause string                               // why the runtime does not respond
	pods  map[string]map[types.UID]*corev1.Pod // by source
}

// WaitingForRuntime returns why the runtime has not listed its pods yet, and since when.
// Empty: it has.
func (a *Agent) WaitingForRuntime() (cause string, since time.Time) {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()
	if a.startup.done {
		return "", time.Time{}
	}
	return a.startup.message(), a.startup.since
}

// recordedTimeline returns the recorded timeline of a pod before adoption. After adoption
// it returns nil.
func (a *Agent) recordedTimeline(uid types.UID) *events.Timeline {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()
	if a.startup.done {
		return nil
	}
	line := events.NewTimeline(events.TimelineOptions{})
	if rec, ok := a.Records[uid]; ok && rec.Timeline != nil {
		if err := json.Unmarshal(rec.Timeline, line); err != nil {
			a.Log.Debug("stored timeline unreadable", "podUID", string(uid), "err", err)
		}
	}
	return line
}

func (s *startup) message() string {
	if s.cause == "" {
		return "waiting for the container runtime: no answer yet"
	}
	return "waiting for the container runtime: " + s.cause
}

// WaitForSync waits until the status cache has the observed state of the pods and not
// only the desired one: after adoption and the first sync pass of every pod. It returns
// immediately if the runtime does not respond, and after timeout at the latest.
func (a *Agent) WaitForSync(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond) // a source without pods causes no event to wait for
	defer tick.Stop()
	for !a.synced() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// HasSynced reports whether the pods of the runtime are adopted and every source is ready.
func (a *Agent) HasSynced() bool {
	select {
	case <-a.ready:
	default:
		return false
	}
	snaps := a.Snapshots()
	return len(snaps) == len(a.Sources) && !slices.ContainsFunc(snaps, func(s *source.Snapshot) bool {
		return !s.Ready
	})
}

func (a *Agent) synced() bool {
	a.startup.mu.Lock()
	done, cause := a.startup.done, a.startup.cause
	a.startup.mu.Unlock()
	if !done {
		return cause != ""
	}
	unsynced := func(s *status.Snapshot) bool { return s.At.IsZero() }
	return len(a.Snapshots()) == len(a.Sources) && !slices.ContainsFunc(a.StatusCache.List(), unsynced)
}

// holdSnapshot stores the newest snapshot of a source for the agent's loop. Before
// adoption it publishes the desired pods.
func (a *Agent) holdSnapshot(snap *source.Snapshot) {
	a.snapshots.Store(snap.Source, snap)
	a.startup.mu.Lock()
	if !a.startup.done {
		now := make(map[types.UID]*corev1.Pod, len(snap.Pods))
		for _, p := range snap.Pods {
			now[p.UID] = p
			a.StatusCache.Put(a.pendingSnapshot(p))
		}
		for uid := range a.startup.pods[snap.Source] {
			if now[uid] == nil {
				a.StatusCache.Remove(uid)
			}
		}
		a.startup.pods[snap.Source] = now
	}
	a.startup.mu.Unlock()
	select {
	case a.snapshotReady <- struct{}{}:
	default:
	}
}

// runtimeUnavailable records why the runtime does not list its pods.
func (a *Agent) runtimeUnavailable(err error) {
	a.startup.mu.Lock()
	defer a.startup.mu.Unlock()
	if a.startup.cause == err.Error() {
		return
	}
	a.startup.cause = err.Error()
	for _, pods := range a.startup.pods {
		for _, p := range pods {
			a.StatusCache.Put(a.pendingSnapshot(p))
		}
	}
}

// pendingSnapshot returns the state of a pod of which only the desired state and the
// record are known. The caller holds the lock.
func (a *Agent) pendingSnapshot(p *corev1.Pod) *status.Snapshot {
	var m plan.Memory
	var v plan.Verdict
	if rec, ok := a.Records[p.UID]; ok {
		m, v = restored(p, rec, RuntimePod{}, a.BootID)
	}
	why := plan.Reason{Code: RuntimeNotReady, Message: a.startup.message()}
	return pod.UnsyncedSnapshot(p, v, m, status.ReportedReason{Reason: why, Since: a.startup.since})
}

// finishStartup applies the snapshots received so far and removes the status of pods
// without a worker.
func (a *Agent) finishStartup(ctx context.Context) {
	a.startup.mu.Lock()
	a.startup.done = true
	a.startup.mu.Unlock()
	a.applySnapshots(ctx)
	for _, pods := range a.startup.pods {
		for uid := range pods {
			if _, known := a.workers[uid]; !known && !a.desired.isQueued(uid) {
				a.StatusCache.Remove(uid)
			}
		}
	}
	a.startup.pods = nil
}

// applySnapshots applies the snapshots that have not been applied yet.
func (a *Agent) applySnapshots(ctx context.Context) {
	for _, snap := range a.newSnapshots() {
		a.applySnapshot(ctx, snap)
	}
}

// newSnapshots returns the newest snapshots that it has not returned before, ordered by
// source.
func (a *Agent) newSnapshots() (out []*source.Snapshot) {
	newest := map[string]*source.Snapshot{}
	for _, snap := range a.Snapshots() {
		newest[snap.Source] = snap
	}
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		if a.applied[name] != newest[name] {
			snap := a.withKubeletUIDs(newest[name])
			a.snapshots.CompareAndSwap(name, newest[name], snap) // for readers of Snapshots
			a.applied[name] = snap
			out = append(out, snap)
		}
	}
	return out
}
