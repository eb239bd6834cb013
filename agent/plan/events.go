package plan

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ActionStarted returns the events to record when an action starts.
func ActionStarted(a Action) []Reason {
	if p, ok := a.(PullImage); ok {
		return []Reason{normal("Pulling", p.Container, fmt.Sprintf("Pulling image %q", p.Image))}
	}
	return nil
}

// ActionFinished returns the events to record when an action has finished.
func ActionFinished(r Outcome) []Reason {
	if KindOf(r.Err) == Canceled {
		return nil
	}
	if r.Err != nil {
		return failureReasons(r)
	}
	switch a := r.Action.(type) {
	case PullImage:
		msg := fmt.Sprintf("Successfully pulled image %q in %s", a.Image,
			r.FinishedAt.Sub(r.StartedAt).Round(time.Millisecond))
		if r.Image != nil && r.Image.Size > 0 {
			msg += fmt.Sprintf(". Image size: %d bytes.", r.Image.Size)
		}
		return []Reason{normal("Pulled", a.Container, msg)}
	case StartContainer:
		return []Reason{
			normal("Created", a.Name, "Created container "+a.Name),
			normal("Started", a.Name, "Started container "+a.Name),
		}
	}
	return nil
}

func failureReasons(r Outcome) []Reason {
	f := FailureOf(r, 0)
	switch a := r.Action.(type) {
	case PostStart: // details only in the log, the output of a hook may be confidential
		return hookFailureReasons(f, "FailedPostStartHook", a.Name, "PostStartHook failed")
	case PreStop:
		return hookFailureReasons(f, "FailedPreStopHook", a.Name, "PreStopHook failed")
	case PullImage:
		return []Reason{
			warning("Failed", a.Container, fmt.Sprintf("Failed to pull image %q: %s", a.Image, f.Message)),
			warning("Failed", a.Container, "Error: "+f.Reason),
		}
	case StartContainer:
		reasons := []Reason{warning("Failed", a.Name, "Error: "+f.Message)}
		if r.Container != nil && r.Container.ID != "" && f.Reason == "RunContainerError" { // created, but not started
			reasons = append([]Reason{normal("Created", a.Name, "Created container "+a.Name)}, reasons...)
		}
		return reasons
	case RunSandbox:
		return []Reason{warning("FailedCreatePodSandBox", "", "Failed to create pod sandbox: "+f.Message)}
	case MountVolume:
		return []Reason{mountFailure(a.Volume, r.Err, f)}
	case ProjectVolume:
		return []Reason{warning("FailedMount", a.Volume,
			fmt.Sprintf("MountVolume.SetUp failed for volume %q : %s", a.Volume, f.Message))}
	case UnmountVolume:
		return []Reason{warning("FailedUnMount", a.Volume,
			fmt.Sprintf("UnmountVolume.TearDown failed for volume %q : %s", a.Volume, f.Message))}
	case CreateDirs:
		return []Reason{warning("FailedCreatePodContainer", "", "unable to create the pod's directories: "+f.Message)}
	case EnsureCgroup:
		return []Reason{warning("FailedCreatePodContainer", "", "unable to ensure the pod's cgroup exists: "+f.Message)}
	case ResizeContainer:
		return []Reason{warning("ResizeError", a.Name, "Pod resize error: "+f.Message)}
	case ResizeCgroup:
		return []Reason{warning("ResizeError", "", "Pod resize error: "+f.Message)}
	case StopContainer:
		return []Reason{warning("FailedKillPod", a.Name, fmt.Sprintf("error killing container %s: %s", a.Name,
			f.Message))}
	case StopSandbox:
		return []Reason{warning("FailedKillPod", "", "error stopping pod sandbox: "+f.Message)}
	}
	return nil
}

// mountFailure returns the event of a volume that cannot be set up.
func mountFailure(volume string, err error, f Failure) Reason {
	code, operation, object := "FailedMount", "MountVolume.SetUp", volume
	if e, ok := errors.AsType[*Error](err); ok && e.Operation != "" {
		code, operation, object = firstNonEmpty(e.Reason, code), e.Operation, e.Object
	}
	return warning(code, volume, fmt.Sprintf("%s failed for volume %q : %s", operation, object, f.Message))
}

// hookFailureReasons returns no event if the hook did not reach the runtime, because it is retried.
func hookFailureReasons(f Failure, code, on, detail string) []Reason {
	if f.Kind == Unavailable {
		return nil
	}
	return []Reason{warning(code, on, detail)}
}

func normal(code, on, detail string) Reason {
	return Reason{Code: code, Target: on, Message: detail, EventType: corev1.EventTypeNormal}
}

func warning(code, on, detail string) Reason {
	return Reason{Code: code, Target: on, Message: detail, EventType: corev1.EventTypeWarning}
}
