package cri

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// sandboxFromList converts an entry of a sandbox list.
func sandboxFromList(l *runtimeapi.PodSandbox) plan.Sandbox {
	return plan.Sandbox{
		ID:        l.Id,
		Ready:     l.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		Attempt:   l.GetMetadata().GetAttempt(),
		CreatedAt: timeFromNanos(l.CreatedAt),
	}
}

// withNetworkState adjusts an observed sandbox by the networks that the runtime does not manage. A
// sandbox without all of its networks counts as not ready. While they are being attached it has no
// addresses, so that no container is started in it.
func (c *Client) withNetworkState(s plan.Sandbox, labels, annotations map[string]string) plan.Sandbox {
	meta, ok := criconfig.ParseSandbox(labels, annotations)
	if !ok || !meta.Networks || c.networksAttached == nil {
		return s
	}
	switch done, attaching := c.networksAttached(string(meta.UID), s.ID); {
	case done:
	case attaching:
		s.IPs = nil
	default:
		s.Ready = false
	}
	return s
}

// containerFromList converts an entry of a container list.
func containerFromList(l *runtimeapi.Container) plan.Container {
	meta, _ := criconfig.ParseContainer(l.Labels, l.Annotations)
	return plan.Container{
		ID: l.Id, Name: meta.Name, SandboxID: l.PodSandboxId,
		State: containerState(l.State), Attempt: l.GetMetadata().GetAttempt(), SpecHash: meta.SpecHash,
		Image: meta.Image, ImageID: l.ImageRef, CreatedAt: timeFromNanos(l.CreatedAt),
	}
}

// sandboxFromStatus converts a sandbox status. ok is false if berth did not create the sandbox.
func sandboxFromStatus(s *runtimeapi.PodSandboxStatus) (plan.Sandbox, bool) {
	if _, ok := criconfig.ParseSandbox(s.GetLabels(), s.GetAnnotations()); !ok {
		return plan.Sandbox{}, false
	}
	out := plan.Sandbox{
		ID:        s.Id,
		Ready:     s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		Attempt:   s.GetMetadata().GetAttempt(),
		CreatedAt: timeFromNanos(s.CreatedAt),
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		out.IPs = append(out.IPs, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		if more.GetIp() != "" {
			out.IPs = append(out.IPs, more.Ip)
		}
	}
	return out, true
}

// containerFromStatus converts a container status, with the termination message if the container
// has exited. ok is false if berth did not create the container.
func containerFromStatus(ctx context.Context, s *runtimeapi.ContainerStatus, sandboxID string) (plan.Container, bool) {
	meta, ok := criconfig.ParseContainer(s.GetLabels(), s.GetAnnotations())
	if !ok {
		return plan.Container{}, false
	}
	out := plan.Container{
		ID: s.Id, Name: meta.Name, SandboxID: sandboxID,
		State: containerState(s.State), Attempt: s.GetMetadata().GetAttempt(), SpecHash: meta.SpecHash,
		Image: meta.Image, ImageID: s.ImageRef,
		CreatedAt: timeFromNanos(s.CreatedAt), StartedAt: timeFromNanos(s.StartedAt),
		FinishedAt: timeFromNanos(s.FinishedAt),
		Kind:       meta.Kind, Devices: meta.Devices,
		LogPath: s.LogPath, StopSignal: signalName(s.GetStopSignal()), RecursiveReadOnly: recursiveReadOnly(s.Mounts),
	}
	if u := s.GetUser().GetLinux(); u != nil {
		out.User = &corev1.LinuxContainerUser{UID: u.GetUid(), GID: u.GetGid(),
			SupplementalGroups: u.GetSupplementalGroups()}
	}
	if name := s.GetImage().GetImage(); !strings.HasPrefix(name, "sha256:") { // an image without a name has its ID here
		out.ImageName = name
	}
	if out.ImageID == "" {
		out.ImageID = s.ImageId
	}
	if out.State == plan.Exited {
		out.ExitCode, out.Reason = s.ExitCode, s.Reason
		// containerd takes the start time after the start, when a short process has exited already.
		if !out.FinishedAt.IsZero() && out.FinishedAt.Before(out.StartedAt) {
			out.FinishedAt = out.StartedAt
		}
		out.Message = terminationMessage(ctx, s, meta)
		out.Interrupted = startInterrupted(s)
	}
	return out, true
}

// startInterrupted reports whether a container exited because the call that started it was
// interrupted, by cancellation or at its deadline. containerd reports that as exit code 128, the
// same code as for an image that lacks the command. The message differs, unless the
// call was interrupted while the shim was starting: in that case the shim was killed.
func startInterrupted(s *runtimeapi.ContainerStatus) bool {
	if s.Reason != "StartError" || s.StartedAt > 0 {
		return false
	}
	return strings.Contains(s.Message, context.Canceled.Error()) ||
		strings.Contains(s.Message, context.DeadlineExceeded.Error()) ||
		strings.Contains(s.Message, "failed to start shim: ") && strings.Contains(s.Message, ": signal: killed")
}

// recursiveReadOnly returns the container paths of the recursively read-only mounts.
func recursiveReadOnly(mounts []*runtimeapi.Mount) (paths []string) {
	for _, m := range mounts {
		if m.GetRecursiveReadOnly() {
			paths = append(paths, m.GetContainerPath())
		}
	}
	return paths
}

// signalName converts a signal to the spelling of the Kubernetes API, for example SIGRTMIN+3.
func signalName(s runtimeapi.Signal) corev1.Signal {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	return corev1.Signal(strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name))
}

func containerState(s runtimeapi.ContainerState) plan.ContainerState {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return plan.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return plan.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return plan.Exited
	}
	return plan.Unknown
}

// timeFromNanos converts a runtime timestamp. Zero and negative values mean that it is not set.
func timeFromNanos(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
