package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// ExitRecorder observes how containers exit, independently of the runtime. No method may block.
type ExitRecorder interface {
	// Watch is called for a running container.
	Watch(id string)
	// ExitStatus returns the exit code of a container and the time of the exit, which is zero if it
	// was not observed. ok is false if the exit code is unknown.
	ExitStatus(id string) (code int32, at time.Time, ok bool)
	// Retain drops all containers that are not in the set, which was listed at asOf.
	Retain(existing map[string]bool, asOf time.Time)
}

// noExitRecorder records nothing.
type noExitRecorder struct{}

func (noExitRecorder) Watch(string)                               {}
func (noExitRecorder) ExitStatus(string) (int32, time.Time, bool) { return 0, time.Time{}, false }
func (noExitRecorder) Retain(map[string]bool, time.Time)          {}

// What containerd reports for a container that exited while containerd was not running.
const (
	unknownExitCode   = 255
	unknownExitReason = "Unknown"
)

// observedContainer is containerFromStatus with the recorded exit status if the runtime reports it
// as unknown.
func (c *Client) observedContainer(ctx context.Context, s *runtimeapi.ContainerStatus,
	sandboxID string) (plan.Container, bool) {
	switch {
	case s.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.exits.Watch(s.GetId())
	case s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && s.GetExitCode() == unknownExitCode &&
		s.GetReason() == unknownExitReason:
		code, at, known := c.exits.ExitStatus(s.GetId())
		if !known {
			break
		}
		s.ExitCode, s.Reason = code, "Error"
		if code == 0 {
			s.Reason = "Completed"
		}
		if !at.IsZero() {
			s.FinishedAt = at.UnixNano()
		}
	}
	return containerFromStatus(ctx, s, sandboxID)
}
