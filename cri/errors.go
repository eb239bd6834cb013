package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/agent/plan"
)

// verb is one thing asked of the runtime, as it is named in errors.
type verb string

const (
	verbVersion         verb = "ask the runtime's version"
	verbStatus          verb = "ask the runtime's status"
	verbRunSandbox      verb = "run sandbox"
	verbStopSandbox     verb = "stop sandbox"
	verbRemoveSandbox   verb = "remove sandbox"
	verbSandboxStatus   verb = "look at sandbox"
	verbListSandboxes   verb = "list sandboxes"
	verbCreateContainer verb = "create container"
	verbStartContainer  verb = "start container"
	verbStopContainer   verb = "stop container"
	verbRemoveContainer verb = "remove container"
	verbContainerStatus verb = "look at container"
	verbListContainers  verb = "list containers"
	verbExecSync        verb = "run command in container"
	verbExec            verb = "prepare exec in container"
	verbAttach          verb = "prepare attach to container"
	verbReopenLog       verb = "reopen log of container"
	verbUpdate          verb = "update resources of container"
	verbEvents          verb = "follow the runtime's events"
	verbLayers          verb = "ask what containers have written"
	verbReclaim         verb = "have what was removed taken from the disk"
	verbImageDisk       verb = "ask where images lie"
	verbImport          verb = "import image"
)

// reason is the word that users see when the verb fails; empty: none.
func (v verb) reason() string {
	switch v {
	case verbRunSandbox:
		return "FailedCreatePodSandBox"
	case verbCreateContainer:
		return "CreateContainerError"
	case verbStartContainer:
		return "RunContainerError"
	case verbStopContainer:
		return "KillContainerError"
	case verbStopSandbox:
		return "KillPodSandboxError"
	default:
		return ""
	}
}

// changes reports whether the verb, cut off half-way, may have changed something.
func (v verb) changes() bool {
	switch v {
	case verbRunSandbox, verbStopSandbox, verbRemoveSandbox, verbCreateContainer, verbStartContainer,
		verbStopContainer, verbRemoveContainer, verbExecSync, verbUpdate:
		return true
	default:
		return false
	}
}

// makes reports whether the verb makes something in several steps, so that it
// is better ended than cut off: see gently.
func (v verb) makes() bool {
	return v == verbRunSandbox || v == verbCreateContainer || v == verbStartContainer
}

// texts is the one place where the words of a runtime are read, for what it
// gives no code of its own. The first rule that fits decides. Runtimes are
// containerd 1.6 and 2.x and, where they differ, CRI-O.
var texts = [...]struct {
	verb   verb // empty: any
	text   string
	unless string // the rule does not fit when this is there too; empty: always fits
	kind   plan.Kind
}{
	// ENOSPC and EDQUOT. The kernel says ENOSPC also for a cgroup that cannot be made.
	{"", "no space left on device", "cgroup", plan.NoSpace},
	{"", "disk quota exceeded", "", plan.NoSpace},
	// containerd 1.6 while it begins; 2.x has the code Unavailable for it.
	{"", "server is not initialized yet", "", plan.Unavailable},
	// An image that is gone shares the code NotFound with a sandbox that is gone.
	{verbCreateContainer, "failed to resolve image", "", plan.ImageGone},
	{verbCreateContainer, "failed to get image from containerd", "", plan.ImageGone},
	{verbCreateContainer, "image not known", "", plan.ImageGone}, // CRI-O
	// What CNI plugins answer comes without a code.
	{verbRunSandbox, "failed to setup network for sandbox", "", plan.Network},
	{verbRunSandbox, "failed to create network namespace for sandbox", "", plan.Network},
	{verbRunSandbox, "failed to create pod network sandbox", "", plan.Network}, // CRI-O
	{verbRunSandbox, "cni plugin not initialized", "", plan.Network},
	{verbRunSandbox, "cni config not initialized", "", plan.Network},
}

// lost are the words of gRPC for a connection that broke when the call was
// already out; it has the code Unavailable as when nobody listened.
var lost = [...]string{"error reading from server", "transport is closing", "closing transport", "connection reset by peer", "broken pipe"}

// reserved reports that the runtime still holds the name of what was to be
// made: an earlier call that was cut off made it, is making it, or is taking it
// back. containerd 2.x has the code FailedPrecondition for it, 1.6 none.
func reserved(err error) bool {
	return err != nil && strings.Contains(status.Convert(err).Message(), "is reserved")
}

// described is an error of gRPC without its wrapping words.
type described struct{ error }

func (d described) Error() string { return status.Convert(d.error).Message() }
func (d described) Unwrap() error { return d.error }

// mapError gives err its kind and its reason. An error that has a kind already
// keeps it. Ctx is the caller's, without the verb's own deadline.
func mapError(ctx context.Context, v verb, on string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*plan.Error](err); ok {
		return err
	}
	what := string(v)
	if on != "" {
		what += " " + on
	}
	return &plan.Error{Kind: kindOf(ctx, v, err), Reason: v.reason(), Err: fmt.Errorf("%s: %w", what, described{err})}
}

func kindOf(ctx context.Context, v verb, err error) plan.Kind {
	code := status.Code(err)
	if code == codes.Unknown {
		code = status.FromContextError(err).Code()
	}
	switch {
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return plan.Canceled
	case code == codes.DeadlineExceeded || ctx.Err() != nil:
		return plan.Timeout
	}
	message := status.Convert(err).Message()
	for _, rule := range texts {
		if (rule.verb == "" || rule.verb == v) && strings.Contains(message, rule.text) &&
			(rule.unless == "" || !strings.Contains(message, rule.unless)) {
			return rule.kind
		}
	}
	switch code {
	case codes.NotFound:
		return plan.NotFound
	case codes.Unavailable:
		if v.changes() && brokeHalfway(message) {
			return plan.Timeout
		}
		return plan.Unavailable
	case codes.Canceled:
		// Not by us: the runtime gave up or the connection was closed.
		return plan.Timeout
	case codes.InvalidArgument:
		return plan.Invalid
	case codes.Unimplemented:
		return plan.Unsupported
	}
	return plan.Other
}

func brokeHalfway(message string) bool {
	for _, text := range lost {
		if strings.Contains(message, text) {
			return true
		}
	}
	return false
}

// unsettled reports that the runtime may have done, or be doing, what failed.
func unsettled(err error) bool {
	k := plan.KindOf(err)
	return err != nil && (k == plan.Timeout || k == plan.Canceled)
}

// gone drops the error of a call whose object does not exist any more.
func gone(err error) error {
	if plan.KindOf(err) == plan.NotFound {
		return nil
	}
	return err
}
