package plan

import (
	"errors"
	"time"
)

// ErrorKind is what policy may ask of an error. Adapters map their errors to kinds
// once; nobody looks at texts.
type ErrorKind int

const (
	Other         ErrorKind = iota // may succeed when tried again
	NotFound                       // the object of the call does not exist (any more)
	ImageNotFound                  // the image is not on the node
	Unavailable                    // the runtime or its socket does not answer: nothing was done
	Timeout                        // the deadline passed: it may or may not have been done
	Canceled                       // called off by us
	Invalid                        // will never succeed with this pod: configuration
	NoSpace                        // a disk is full
	Network                        // the pod network could not be set up
	Denied                         // the registry refused the credentials
	Unsupported                    // the runtime cannot do this
)

// Error is an error with what policy and users need to know of it. Reason is
// the CamelCase word shown as a waiting or event reason (ErrImagePull,
// CreateContainerConfigError, FailedMount, …); empty: derived from the action.
type Error struct {
	Kind   ErrorKind
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of the first Error in err's chain.
func KindOf(err error) ErrorKind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}

// Failure is an error as data: retry and back-off are decided here.
type Failure struct {
	At      time.Time
	Count   int // in a row
	Kind    ErrorKind
	Reason  string
	Message string
	Action  Action // what failed: a failed pull of another image holds nothing back
}

// Outcome is the end of an action, good or bad.
type Outcome struct {
	Action        Action
	StartedAt     time.Time
	FinishedAt    time.Time
	Err           error
	Sandbox       *Sandbox   // after RunSandbox
	Container     *Container // after StartContainer (also a failed one, if it was created) and StopContainer
	Image         *Image     // after PullImage
	MissingImages []string   // names of images, any of which is not here: after a StartContainer that has failed for it
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// FailureOf turns the bad end of an action into data; before is the number of
// failures in a row that came before it.
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
