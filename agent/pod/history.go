package pod

import (
	"encoding/json"
	"fmt"
	"time"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/agent/status/events"
)

// reasonsJSON is the stored form of the reported reasons, version 1.
type reasonsJSON struct {
	Version int                     `json:"version"`
	Reasons []status.ReportedReason `json:"told"`
}

// renamedReasons maps codes in histories of earlier releases to their current names.
var renamedReasons = map[string]string{"LookFailed": ObserveFailed, "Returns": plan.ReasonRecreate}

// EncodeReasons encodes the reasons of a pod for its history.
func EncodeReasons(reasons []status.ReportedReason) ([]byte, error) {
	return json.Marshal(reasonsJSON{1, reasons})
}

// decodeReasons returns the reasons of a stored history.
func decodeReasons(stored []byte) ([]status.ReportedReason, error) {
	var in reasonsJSON
	if err := json.Unmarshal(stored, &in); err != nil {
		return nil, err
	}
	if in.Version != 1 {
		return nil, fmt.Errorf("version %d is not supported", in.Version)
	}
	for i, r := range in.Reasons {
		if current, renamed := renamedReasons[r.Code]; renamed {
			in.Reasons[i].Code = current
		}
	}
	return in.Reasons, nil
}

// restoreHistory continues the history from before an agent restart. A reason that
// was reported before is not reported again and keeps its timestamp.
func (w *Worker) restoreHistory(h History) {
	if h.Timeline != nil {
		if err := json.Unmarshal(h.Timeline, w.timeline); err != nil {
			w.log.Warn("stored timeline unreadable", "err", err)
		}
	}
	if h.Reported != nil {
		if reasons, err := decodeReasons(h.Reported); err != nil {
			w.log.Warn("stored reasons unreadable", "err", err)
		} else {
			w.state.restoreReports(reasons, w.now())
		}
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
