package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/board"
	"berth/agent/plan"
)

// The board's own words, as the rest of the package says them.
type (
	// Board holds the newest snapshot of every pod.
	Board = board.Board
	// Snapshot is one pod as its last pass left it.
	Snapshot = board.Snapshot
	// Work is an action under way.
	Work = board.Work
	// Told is a reason that users were told, and since when it holds.
	Told = board.Told
	// News is one change of the board.
	News = board.News
)

func snapshotOf(b *book, p plan.Plan, at time.Time) *Snapshot {
	s := &Snapshot{
		At: at, Pod: b.wish.Pod, End: p.Memory.End, Verdict: b.verdict, Status: p.Status, Seen: b.seen,
		Refs: b.refs, Why: b.told, Memory: p.Memory, Passes: b.passes, Wake: p.Wake,
	}
	for key, a := range b.busy {
		s.Busy = append(s.Busy, Work{Action: a, Since: b.since[key]})
	}
	slices.SortFunc(s.Busy, func(x, y Work) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Action.Key().String(), y.Action.Key().String()))
	})
	if len(b.failed) > 0 {
		s.Failed = maps.Clone(b.failed)
	}
	return s
}

func isTerminal(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }
