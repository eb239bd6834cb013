package cgroups

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"berth/agent/plan"
)

const (
	reasonMake   = "FailedCreatePodContainer"
	reasonRemove = "FailedKillPod"
)

// failed wraps an error with its kind and the event reason. An existing kind is kept.
func failed(reason string, err error) error {
	if err == nil {
		return nil
	}
	kind := plan.KindOf(err)
	switch {
	case kind != plan.Other:
	case errors.Is(err, context.Canceled):
		kind = plan.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		kind = plan.Timeout
	}
	return &plan.Error{Kind: kind, Reason: reason, Err: err}
}

func invalid(format string, args ...any) error {
	return &plan.Error{Kind: plan.Invalid, Err: fmt.Errorf(format, args...)}
}

// isGone reports whether an error means that the cgroup does not exist. Access during its removal
// returns ENODEV.
func isGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }
