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

// failed gives an error its kind and the reason users see. A kind that was
// found deeper down stays.
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

// gone reports whether an error says that the cgroup is not there (any more):
// a read or write that meets a removal gets ENODEV.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }
