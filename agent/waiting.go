package agent

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status/events"
)

// Why a pod waits that no pass was made for: nothing is guessed of what comes next.
const (
	RuntimeNotReady = "RuntimeNotReady" // the runtime has not told what it has
	NameTaken       = "NameTaken"       // another pod has its name
	ObserveFailed   = "LookFailed"      // what there is of it cannot be read
)

// waiting shows on the board what is wanted while the runtime has not yet told
// what it has. It only shows: workers are made after that (A1).
type waiting struct {
	mu    sync.Mutex
	over  bool
	since time.Time
	cause string                               // why the runtime does not tell
	pods  map[string]map[types.UID]*corev1.Pod // by source
}

// WaitingForRuntime returns why the runtime has not yet told what it has, and since when;
// empty: it has.
func (a *Agent) WaitingForRuntime() (cause string, since time.Time) {
	a.wait.mu.Lock()
	defer a.wait.mu.Unlock()
	if a.wait.over {
		return "", time.Time{}
	}
	return a.wait.text(), a.wait.since
}

// earlier returns, before adoption, the timeline that earlier lives have left of
// a pod; nil: the pods are adopted.
func (a *Agent) earlier(uid types.UID) *events.Timeline {
	a.wait.mu.Lock()
	defer a.wait.mu.Unlock()
	if a.wait.over {
		return nil
	}
	line := events.NewTimeline(events.TimelineOptions{})
	if rec, ok := a.Records[uid]; ok && rec.Timeline != nil {
		if err := json.Unmarshal(rec.Timeline, line); err != nil {
			a.Log.Debug("timeline of an earlier life", "err", err)
		}
	}
	return line
}

func (w *waiting) text() string {
	if w.cause == "" {
		return "waiting for the container runtime: it has not answered yet"
	}
	return "waiting for the container runtime: " + w.cause
}

// WaitForSync waits until the board tells what is, and not only what is wished: right
// after a start that takes the runtime's answer and every pod's first pass. It
// returns at once when the runtime does not answer, and after bound at the latest.
func (a *Agent) WaitForSync(ctx context.Context, bound time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond) // nothing rings for a folder without pods
	defer tick.Stop()
	for !a.steady() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// HasSynced reports whether the agent knows what the runtime has and every source has
// told all that it wants.
func (a *Agent) HasSynced() bool {
	select {
	case <-a.ready:
	default:
		return false
	}
	snaps := a.Snapshots()
	return len(snaps) == len(a.Sources) && !slices.ContainsFunc(snaps, func(s *source.Snapshot) bool { return !s.Ready })
}

func (a *Agent) steady() bool {
	a.wait.mu.Lock()
	over, cause := a.wait.over, a.wait.cause
	a.wait.mu.Unlock()
	if !over {
		return cause != ""
	}
	unseen := func(s *Snapshot) bool { return s.At.IsZero() }
	return len(a.Snapshots()) == len(a.Sources) && !slices.ContainsFunc(a.StatusCache.All(), unseen)
}

// holdSnapshot keeps the newest snapshot of a source for the agent's loop. Until that
// runs, the board shows what is wanted.
func (a *Agent) holdSnapshot(snap *source.Snapshot) {
	a.snaps.Store(snap.Source, snap)
	a.wait.mu.Lock()
	if !a.wait.over {
		now := make(map[types.UID]*corev1.Pod, len(snap.Pods))
		for _, pod := range snap.Pods {
			now[pod.UID] = pod
			a.StatusCache.Put(a.unseen(pod))
		}
		for uid := range a.wait.pods[snap.Source] {
			if now[uid] == nil {
				a.StatusCache.Remove(uid)
			}
		}
		a.wait.pods[snap.Source] = now
	}
	a.wait.mu.Unlock()
	select {
	case a.fresh <- struct{}{}:
	default:
	}
}

// blocked notes why the runtime does not tell what it has.
func (a *Agent) blocked(err error) {
	a.wait.mu.Lock()
	defer a.wait.mu.Unlock()
	if a.wait.cause == err.Error() {
		return
	}
	a.wait.cause = err.Error()
	for _, pods := range a.wait.pods {
		for _, pod := range pods {
			a.StatusCache.Put(a.unseen(pod))
		}
	}
}

// unseen is a pod of which only the wish and the record are known.
func (a *Agent) unseen(pod *corev1.Pod) *Snapshot {
	var m plan.Memory
	var v plan.Verdict
	if rec, ok := a.Records[pod.UID]; ok {
		m, v = restored(pod, rec, RuntimePod{}, a.BootID)
	}
	return undecided(pod, v, m, Told{Reason: plan.Reason{Code: RuntimeNotReady, Detail: a.wait.text()}, Since: a.wait.since})
}

// undecided is a pod that no pass was made for, and why: its status is what was
// known of it before.
func undecided(pod *corev1.Pod, v plan.Verdict, m plan.Memory, why Told) *Snapshot {
	s := &Snapshot{Pod: pod, Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: pod.Status.QOSClass}}
	s.Verdict, s.End, s.Status.Conditions = v, m.End, m.Conditions
	for _, ip := range m.IPs {
		s.Status.PodIPs = append(s.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(m.IPs) > 0 {
		s.Status.PodIP = m.IPs[0]
	}
	if !m.Started.IsZero() {
		s.Status.StartTime = &metav1.Time{Time: m.Started}
	}
	if m.Phase != "" {
		s.Status.Phase, s.Status.Reason, s.Status.Message = m.Phase, m.Reason, m.Message
	}
	if !isTerminal(s.Status.Phase) {
		s.Status.Reason, s.Status.Message = why.Code, why.Detail
		s.Why = []Told{why}
	}
	return s
}

// settle ends the waiting: what the sources have told by now is acted on, and
// what the board showed of pods that got no worker is taken away.
func (a *Agent) settle(take func(*source.Snapshot)) {
	a.wait.mu.Lock()
	a.wait.over = true
	a.wait.mu.Unlock()
	a.applyHeldSnapshots(take)
	for _, pods := range a.wait.pods {
		for uid := range pods {
			if _, known := a.workers[uid]; !known && !a.desired.isQueued(uid) {
				a.StatusCache.Remove(uid)
			}
		}
	}
	a.wait.pods = nil
}

// applyHeldSnapshots hands over the snapshots that are newer than those it handed over
// before, in the order of the sources' names.
func (a *Agent) applyHeldSnapshots(take func(*source.Snapshot)) {
	held := map[string]*source.Snapshot{}
	for _, snap := range a.Snapshots() {
		held[snap.Source] = snap
	}
	for _, name := range slices.Sorted(maps.Keys(held)) {
		if a.taken[name] != held[name] {
			a.taken[name] = held[name]
			take(held[name])
		}
	}
}
