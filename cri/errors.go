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

// verb is an operation of the runtime, as it is named in errors.
type verb string

const (
	verbVersion         verb = "get runtime version"
	verbStatus          verb = "get runtime status"
	verbRunSandbox      verb = "run sandbox"
	verbStopSandbox     verb = "stop sandbox"
	verbRemoveSandbox   verb = "remove sandbox"
	verbSandboxStatus   verb = "get status of sandbox"
	verbListSandboxes   verb = "list sandboxes"
	verbCreateContainer verb = "create container"
	verbStartContainer  verb = "start container"
	verbStopContainer   verb = "stop container"
	verbRemoveContainer verb = "remove container"
	verbContainerStatus verb = "get status of container"
	verbListContainers  verb = "list containers"
	verbExecSync        verb = "run command in container"
	verbExec            verb = "prepare exec in container"
	verbAttach          verb = "prepare attach to container"
	verbReopenLog       verb = "reopen log of container"
	verbUpdate          verb = "update resources of container"
	verbCheckpoint      verb = "checkpoint container"
	verbEvents          verb = "watch runtime events"
	verbContainerStats  verb = "list container stats"
	verbCollectGarbage  verb = "collect garbage of the runtime"
	verbImageFsInfo     verb = "get image filesystem info"
	verbImport          verb = "import image"
)

// reason is the reason that users see when the verb fails. Empty: none.
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

// mutates reports whether the verb may have changed something when it was interrupted.
func (v verb) mutates() bool {
	switch v {
	case verbRunSandbox, verbStopSandbox, verbRemoveSandbox, verbCreateContainer, verbStartContainer,
		verbStopContainer, verbRemoveContainer, verbExecSync, verbUpdate:
		return true
	default:
		return false
	}
}

// creates reports whether the verb creates something in several steps, so that letting it complete
// is better than canceling it. See withCancelGrace.
func (v verb) creates() bool {
	return v == verbRunSandbox || v == verbCreateContainer || v == verbStartContainer
}

// messageRules is the only place that interprets error messages of the runtime, for conditions that
// have no code of their own. The first matching rule wins. The supported runtimes are containerd
// 1.6 and 2.x and, where it differs, CRI-O.
var messageRules = [...]struct {
	verb   verb // empty: any
	text   string
	unless string // the rule does not match if the message contains this; empty: no exception
	kind   plan.ErrorKind
}{
	// ENOSPC and EDQUOT. The kernel also returns ENOSPC for a cgroup that it cannot create.
	{"", "no space left on device", "cgroup", plan.NoSpace},
	{"", "disk quota exceeded", "", plan.NoSpace},
	// containerd 1.6 during startup. 2.x uses the code Unavailable.
	{"", "server is not initialized yet", "", plan.Unavailable},
	// A missing image has the same code NotFound as a missing sandbox.
	{verbCreateContainer, "failed to resolve image", "", plan.ImageNotFound},
	{verbCreateContainer, "failed to get image from containerd", "", plan.ImageNotFound},
	{verbCreateContainer, "image not known", "", plan.ImageNotFound}, // CRI-O
	// Errors of CNI plugins have no code.
	{verbRunSandbox, "failed to setup network for sandbox", "", plan.Network},
	{verbRunSandbox, "failed to create network namespace for sandbox", "", plan.Network},
	{verbRunSandbox, "failed to create pod network sandbox", "", plan.Network}, // CRI-O
	{verbRunSandbox, "cni plugin not initialized", "", plan.Network},
	{verbRunSandbox, "cni config not initialized", "", plan.Network},
}

// brokenConnectionTexts are gRPC's messages for a connection that broke after the request was sent.
// They have the code Unavailable, as if the runtime was not listening.
var brokenConnectionTexts = [...]string{"error reading from server", "transport is closing", "closing transport",
	"connection reset by peer", "broken pipe"}

// isNameReserved reports whether the name of the new object is still reserved: an interrupted
// earlier call created it, is creating it, or is rolling it back. containerd 2.x uses the code
// FailedPrecondition for this, 1.6 has none.
func isNameReserved(err error) bool {
	return err != nil && strings.Contains(status.Convert(err).Message(), "is reserved")
}

// grpcError is a gRPC error without the "rpc error" prefix.
type grpcError struct{ error }

func (d grpcError) Error() string { return status.Convert(d.error).Message() }
func (d grpcError) Unwrap() error { return d.error }

// mapError sets the kind and reason of err. An error that already has a kind is returned unchanged.
// ctx is the caller's context, without the deadline of the verb.
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
	return &plan.Error{Kind: errorKind(ctx, v, err), Reason: v.reason(),
		Err: fmt.Errorf("%s: %w", what, grpcError{err})}
}

func errorKind(ctx context.Context, v verb, err error) plan.ErrorKind {
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
	for _, rule := range messageRules {
		if (rule.verb == "" || rule.verb == v) && strings.Contains(message, rule.text) &&
			(rule.unless == "" || !strings.Contains(message, rule.unless)) {
			return rule.kind
		}
	}
	switch code {
	case codes.NotFound:
		return plan.NotFound
	case codes.Unavailable:
		if v.mutates() && connectionBroke(message) {
			return plan.Timeout
		}
		return plan.Unavailable
	case codes.Canceled:
		// Not canceled by the caller: the runtime gave up or the connection was closed.
		return plan.Timeout
	case codes.InvalidArgument:
		return plan.Invalid
	case codes.Unimplemented:
		return plan.Unsupported
	}
	return plan.Other
}

func connectionBroke(message string) bool {
	for _, text := range brokenConnectionTexts {
		if strings.Contains(message, text) {
			return true
		}
	}
	return false
}

// outcomeUnknown reports whether the runtime may have completed, or may still be doing, the failed
// call.
func outcomeUnknown(err error) bool {
	k := plan.KindOf(err)
	return err != nil && (k == plan.Timeout || k == plan.Canceled)
}

// ignoreNotFound drops the error of a call whose object does not exist.
func ignoreNotFound(err error) error {
	if plan.KindOf(err) == plan.NotFound {
		return nil
	}
	return err
}
