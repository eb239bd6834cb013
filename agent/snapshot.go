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

type ( // what the board holds, as the rest of the package calls it
	Board    = board.Board
	Snapshot = board.Snapshot
	Work     = board.Work
	Told     = board.Told
	News     = board.News
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
