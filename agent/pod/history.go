package pod

import (
	"encoding/json"
	"fmt"
	"time"

	"berth/agent/checkpoint"
	"berth/agent/status"
	"berth/agent/status/events"
)

// reasonsJSON is the stored form of the reported reasons, version 1.
type reasonsJSON struct {
	Version int                     `json:"version"`
	Reasons []status.ReportedReason `json:"told"`
}

// EncodeReasons encodes the reasons of a pod for its history.
func EncodeReasons(reasons []status.ReportedReason) ([]byte, error) {
	return json.Marshal(reasonsJSON{1, reasons})
}

// restoreHistory continues the history from before an agent restart. A reason that
// was reported before is not reported again and keeps its timestamp.
func (w *Worker) restoreHistory(h History) {
	if h.Timeline != nil {
		if err := json.Unmarshal(h.Timeline, w.timeline); err != nil {
			w.log.Warn("stored timeline unreadable", "err", err)
		}
	}
	var in reasonsJSON
	switch {
	case h.Reported == nil:
	case json.Unmarshal(h.Reported, &in) != nil || in.Version != 1:
		w.log.Warn("stored reasons unreadable")
	default:
		w.state.restoreReports(in.Reasons, w.now())
	}
	restart := events.Restart{StoppedAt: h.Last.EndedAt, StartedAt: h.AgentStarted,
		Cause: restartCause(h.Last, h.AgentStarted)}
	w.timeline.Resume(restart)
}

// restartCause describes how the previous run of the agent ended.
func restartCause(last checkpoint.PreviousRun, started time.Time) string {
	gap := max(0, started.Sub(last.EndedAt)).Round(time.Millisecond)
	switch {
	case last.EndedAt.IsZero():
		return "the agent started, its previous run is unknown"
	case last.CleanExit:
		return fmt.Sprintf("the agent was stopped and started again after %s", gap)
	}
	return fmt.Sprintf("the agent was killed or crashed and started again, its last record is %s older", gap)
}
