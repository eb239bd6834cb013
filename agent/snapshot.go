package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status"
)

// The board's own words, as the rest of the package says them.
type (
	// Board holds the newest snapshot of every pod.
	Board = status.Board
	// Snapshot is one pod as its last pass left it.
	Snapshot = status.Snapshot
	// Work is an action under way.
	Work = status.Work
	// Told is a reason that users were told, and since when it holds.
	Told = status.Told
	// News is one change of the board.
	News = status.News
)

func snapshotOf(b *state, p plan.Plan, at time.Time) *Snapshot {
	s := &Snapshot{
		At: at, Pod: b.desired.Pod, End: p.Memory.End, Verdict: b.verdict, Status: p.Status, Seen: b.observed,
		Refs: b.refs, Why: b.reported, Memory: p.Memory, Passes: b.syncs, Wake: p.Wake,
	}
	s.Busy, s.Failed = working(b)
	return s
}

// working is what is under way for a pod, and what has failed of it.
func working(b *state) (busy []Work, failed map[plan.OpKey]plan.Failure) {
	for key, a := range b.inProgress {
		busy = append(busy, Work{Action: a, Since: b.startedAt[key]})
	}
	slices.SortFunc(busy, func(x, y Work) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Action.Key().String(), y.Action.Key().String()))
	})
	if len(b.failures) > 0 {
		failed = maps.Clone(b.failures)
	}
	return busy, failed
}

func isTerminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
