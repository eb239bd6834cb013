package metrics

import (
	"maps"
	"testing"

	"berth/agent/status"
	"berth/internal/telemetry"
)

func TestStateHasDesiredAndActualVolumes(t *testing.T) {
	t.Parallel()
	s := State(status.Counts{
		Pods: 3, Static: 1, SandboxReady: 2, Containers: map[string]int{"running": 4},
		Desired: map[string]int{"a": 2, "b": 1}, Mounted: map[string]int{"a": 1},
	})
	want := map[telemetry.VolumeState]int{
		{Plugin: "a"}: 2, {Plugin: "a", Actual: true}: 1, {Plugin: "b"}: 1, {Plugin: "b", Actual: true}: 0,
	}
	if !maps.Equal(s.Volumes, want) {
		t.Errorf("got volumes %v, want %v", s.Volumes, want)
	}
	if s.Pods != 3 || s.StaticPods != 1 || s.RunningPods != 2 || s.Containers["running"] != 4 {
		t.Errorf("got %+v", s)
	}
}
