package agent

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/status/events"
)

// reasonsJSON is the written form of what a pod waits for, version 1.
type reasonsJSON struct {
	Version int    `json:"version"`
	Reasons []Told `json:"told"`
}

// story is what of a pod users may want to read after a restart of the agent.
// The store asks for it, on its own goroutine.
func (a *Agent) story(uid types.UID, t *events.Timeline) checkpoint.History {
	var s checkpoint.History
	var err error
	if s.Timeline, err = json.Marshal(t); err != nil {
		a.Log.Debug("write timeline", "uid", string(uid), "err", err)
	}
	if s.Events, err = a.Events.Save(uid); err != nil {
		a.Log.Debug("write events", "uid", string(uid), "err", err)
	}
	if snap, ok := a.StatusCache.Get(uid); ok && snap.Passes > 0 {
		if s.Reported, err = json.Marshal(reasonsJSON{1, snap.Why}); err != nil {
			a.Log.Debug("write what the pod waits for", "uid", string(uid), "err", err)
		}
	}
	return s
}

// recall takes up the events that earlier lives have told.
func (a *Agent) recall() {
	for uid, rec := range a.Records {
		if rec.Pod == nil || rec.Events == nil {
			continue
		}
		if err := a.Events.Restore(events.RefOf(rec.Pod), rec.Events); err != nil {
			a.Log.Warn("the events of an earlier life are lost", "uid", string(uid), "err", err)
		}
	}
}

// restoreHistory goes on with the story of an earlier life. What was told then is not
// told again, and keeps its time.
func (w *worker) restoreHistory(s checkpoint.History, last checkpoint.PreviousRun, began time.Time) {
	if s.Timeline != nil {
		if err := json.Unmarshal(s.Timeline, w.timeline); err != nil {
			w.log.Warn("the timeline of an earlier life is lost", "err", err)
		}
	}
	var in reasonsJSON
	switch {
	case s.Reported == nil:
	case json.Unmarshal(s.Reported, &in) != nil || in.Version != 1:
		w.log.Warn("what the pod waited for in an earlier life is not known")
	default:
		w.state.restoreReports(in.Reasons, w.now())
	}
	w.timeline.Resume(events.Restart{Left: last.EndedAt, Began: began, Cause: restartCause(last, began)})
}

// restartCause says how the agent's earlier life has ended.
func restartCause(last checkpoint.PreviousRun, began time.Time) string {
	away := max(0, began.Sub(last.EndedAt)).Round(time.Millisecond)
	switch {
	case last.EndedAt.IsZero():
		return "the agent began; what it did before is not known"
	case last.CleanExit:
		return fmt.Sprintf("the agent was stopped and began again %s later", away)
	}
	return fmt.Sprintf("the agent was killed or crashed and began again; its last words are %s older", away)
}
