package metrics

import (
	"berth/agent/status"
	"berth/internal/telemetry"
)

// State returns the part of the state that the status cache knows.
func State(n status.Counts) telemetry.State {
	s := telemetry.State{
		Pods: n.Pods, StaticPods: n.Static, RunningPods: n.SandboxReady, Containers: n.Containers,
		Volumes: map[telemetry.VolumeState]int{},
	}
	for plugin, desired := range n.Desired {
		s.Volumes[telemetry.VolumeState{Plugin: plugin}] = desired
		s.Volumes[telemetry.VolumeState{Plugin: plugin, Actual: true}] = n.Mounted[plugin]
	}
	return s
}
