package volumes

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"berth/agent/plan"
)

// failed gives an error its kind and the reason users see. A kind that was
// found deeper down stays.
func failed(reason string, err error) error {
	kind := plan.KindOf(err)
	switch {
	case kind != plan.Other:
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		kind = plan.NoSpace
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
