package cri

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// ExitRecorder sees how containers end, beside the runtime. No method may block.
type ExitRecorder interface {
	// Watch says that a container runs.
	Watch(id string)
	// ExitStatus is the exit code of a container and when it ended, zero if nobody saw
	// that; not ok: it is not known.
	ExitStatus(id string) (code int32, at time.Time, ok bool)
	// Retain says which containers there were at a time.
	Retain(there map[string]bool, asOf time.Time)
}

// noExits knows nothing.
type noExits struct{}

func (noExits) Watch(string)                               {}
func (noExits) ExitStatus(string) (int32, time.Time, bool) { return 0, time.Time{}, false }
func (noExits) Retain(map[string]bool, time.Time)          {}

// What containerd says of a container that ended while it was away.
const (
	unknownCode   = 255
	unknownReason = "Unknown"
)

// seen is seenContainer, with the end that a container had where the runtime
// says that it does not know it.
func (c *Client) seen(ctx context.Context, s *runtimeapi.ContainerStatus, sandboxID string) (plan.Container, bool) {
	switch {
	case s.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.exits.Watch(s.GetId())
	case s.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED && s.GetExitCode() == unknownCode && s.GetReason() == unknownReason:
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
	return seenContainer(ctx, s, sandboxID)
}
