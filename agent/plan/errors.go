package plan

import (
	"errors"
	"time"
)

// ErrorKind classifies an error for retry and back-off. Adapters map their errors to kinds.
// Decisions never depend on the text of an error.
type ErrorKind int

const (
	Other         ErrorKind = iota // may succeed when retried
	NotFound                       // the object of the call does not exist
	ImageNotFound                  // the image is not present on the node
	Unavailable                    // the runtime does not respond, nothing was done
	Timeout                        // the deadline was exceeded, the call may or may not have succeeded
	Canceled                       // canceled by the agent
	Invalid                        // the configuration is invalid, a retry cannot succeed
	NoSpace                        // a disk is full
	Network                        // the pod network could not be set up
	Denied                         // the registry denied access
	Unsupported                    // not supported by the runtime
)

// Error is an error with its classification. Reason is the CamelCase reason of a waiting state or
// event (ErrImagePull, CreateContainerConfigError, FailedMount, …). An empty reason is derived from
// the action.
type Error struct {
	Kind   ErrorKind
	Reason string
	Err    error
	// Operation is the part of a volume's setup that has failed, as in upstream's events, such as
	// MountVolume.MountDevice, and Object the name of the volume there. Empty: those of the action.
	Operation, Object string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in the chain of err, or Other.
func KindOf(err error) ErrorKind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}

// IsTransient reports whether an error is a temporary one of the runtime or of the node.
func IsTransient(err error) bool {
	switch KindOf(err) {
	case Unavailable, Timeout, Canceled, NoSpace:
		return true
	default:
		return false
	}
}

// Failure is the last error of an action.
type Failure struct {
	At      time.Time
	Count   int // consecutive failures
	Kind    ErrorKind
	Reason  string
	Message string
	Action  Action // the failed action: a failed pull does not delay the pull of another image
}

// Outcome is the result of an action.
type Outcome struct {
	Action     Action
	StartedAt  time.Time
	FinishedAt time.Time
	Err        error
	Sandbox    *Sandbox   // of RunSandbox
	Container  *Container // of StopContainer and StartContainer, also of a failed start that created the container
	Image      *Image     // of PullImage
	// of a StartContainer that failed with ImageNotFound: images of which at least one is missing
	MissingImages []string
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// FailureOf returns the Failure of an outcome with an error. before is the number of consecutive
// failures before it.
func FailureOf(r Outcome, before int) Failure {
	f := Failure{At: r.FinishedAt, Count: before + 1, Kind: KindOf(r.Err), Message: r.Err.Error(), Action: r.Action}
	f.Reason = reasonOf(r.Err)
	if f.Reason == "" {
		f.Reason = defaultReason(r.Action)
	}
	return f
}

func defaultReason(a Action) string {
	switch a.(type) {
	case PullImage:
		return "ErrImagePull"
	case StartContainer:
		return "CreateContainerError"
	case RunSandbox:
		return "FailedCreatePodSandBox"
	case MountVolume, ProjectVolume:
		return "FailedMount"
	case UnmountVolume:
		return "FailedUnMount"
	case StopContainer, StopSandbox:
		return "FailedKillPod"
	default:
		return "Failed"
	}
}
