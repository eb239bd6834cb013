package pod

import (
	"testing"
	"time"

	"berth/agent/checkpoint"
)

func TestRestartCause(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for want, last := range map[string]checkpoint.PreviousRun{
		"the agent started, its previous run is unknown": {},
		"the agent was stopped and started again after 5s": {
			EndedAt: at.Add(-5 * time.Second), CleanExit: true,
		},
		"the agent was killed or crashed and started again, its last record " +
			"is 1m0s older": {EndedAt: at.Add(-time.Minute)},
		"the agent was stopped and started again after 0s": {
			EndedAt: at.Add(time.Hour), CleanExit: true,
		},
	} {
		if got := restartCause(last, at); got != want {
			t.Errorf("%+v: %q, want %q", last, got, want)
		}
	}
}
