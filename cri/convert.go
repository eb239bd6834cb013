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

// listedSandbox is what a list tells of a sandbox.
func listedSandbox(l *runtimeapi.PodSandbox) plan.Sandbox {
	return plan.Sandbox{
		ID:        l.Id,
		Ready:     l.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		Attempt:   l.GetMetadata().GetAttempt(),
		CreatedAt: nanos(l.CreatedAt),
	}
}

// judged is a sandbox that is seen with what the runtime does not know of it.
// Without all networks that it is to have it is as good as not ready; while they
// are made it has no address yet, so that no container starts in it.
func (c *Client) judged(s plan.Sandbox, labels, annotations map[string]string) plan.Sandbox {
	own, ok := criconfig.ParseSandbox(labels, annotations)
	if !ok || !own.Networks || c.attached == nil {
		return s
	}
	switch done, making := c.attached(string(own.UID), s.ID); {
	case done:
	case making:
		s.IPs = nil
	default:
		s.Ready = false
	}
	return s
}

// listedContainer is what a list tells of a container.
func listedContainer(l *runtimeapi.Container) plan.Container {
	own, _ := criconfig.ParseContainer(l.Labels, l.Annotations)
	return plan.Container{
		ID: l.Id, Name: own.Name, SandboxID: l.PodSandboxId,
		State: stateOf(l.State), Attempt: l.GetMetadata().GetAttempt(), SpecHash: own.SpecHash,
		Image: own.Image, ImageID: l.ImageRef, CreatedAt: nanos(l.CreatedAt),
	}
}

// seenSandbox is what a status tells of a sandbox; not ok if it is not ours.
func seenSandbox(s *runtimeapi.PodSandboxStatus) (plan.Sandbox, bool) {
	if _, ok := criconfig.ParseSandbox(s.GetLabels(), s.GetAnnotations()); !ok {
		return plan.Sandbox{}, false
	}
	seen := plan.Sandbox{
		ID:        s.Id,
		Ready:     s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		Attempt:   s.GetMetadata().GetAttempt(),
		CreatedAt: nanos(s.CreatedAt),
	}
	if ip := s.GetNetwork().GetIp(); ip != "" {
		seen.IPs = append(seen.IPs, ip)
	}
	for _, more := range s.GetNetwork().GetAdditionalIps() {
		if more.GetIp() != "" {
			seen.IPs = append(seen.IPs, more.Ip)
		}
	}
	return seen, true
}

// seenContainer is what a status tells of a container, with its termination
// message if it has ended; not ok if it is not ours.
func seenContainer(ctx context.Context, s *runtimeapi.ContainerStatus, sandboxID string) (plan.Container, bool) {
	own, ok := criconfig.ParseContainer(s.GetLabels(), s.GetAnnotations())
	if !ok {
		return plan.Container{}, false
	}
	seen := plan.Container{
		ID: s.Id, Name: own.Name, SandboxID: sandboxID,
		State: stateOf(s.State), Attempt: s.GetMetadata().GetAttempt(), SpecHash: own.SpecHash,
		Image: own.Image, ImageID: s.ImageRef,
		CreatedAt: nanos(s.CreatedAt), StartedAt: nanos(s.StartedAt), FinishedAt: nanos(s.FinishedAt),
		Kind: own.Kind, Devices: own.Devices,
		LogPath: s.LogPath, StopSignal: signalOf(s.GetStopSignal()), RecursiveReadOnly: recursiveReadOnly(s.Mounts),
	}
	if u := s.GetUser().GetLinux(); u != nil {
		seen.User = &corev1.LinuxContainerUser{UID: u.GetUid(), GID: u.GetGid(), SupplementalGroups: u.GetSupplementalGroups()}
	}
	if name := s.GetImage().GetImage(); !strings.HasPrefix(name, "sha256:") { // an image without a name has its ID there
		seen.ImageName = name
	}
	if seen.ImageID == "" {
		seen.ImageID = s.ImageId
	}
	if seen.State == plan.Exited {
		seen.ExitCode, seen.Reason = s.ExitCode, s.Reason
		seen.Message = exitMessage(ctx, s, own)
		seen.CutOff = startCutOff(s)
	}
	return seen, true
}

// startCutOff reports whether a container has ended because the call that started it
// was broken off, by the death of who made it or at its deadline: containerd takes
// that for an end with code 128, as it does an image without such a command. It says
// so itself, unless the call was broken off as a shim was started: then that was killed.
func startCutOff(s *runtimeapi.ContainerStatus) bool {
	if s.Reason != "StartError" || s.StartedAt > 0 {
		return false
	}
	return strings.Contains(s.Message, context.Canceled.Error()) || strings.Contains(s.Message, context.DeadlineExceeded.Error()) ||
		strings.Contains(s.Message, "failed to start shim: ") && strings.Contains(s.Message, ": signal: killed")
}

// recursiveReadOnly lists the paths that are mounted read-only with all below.
func recursiveReadOnly(mounts []*runtimeapi.Mount) (paths []string) {
	for _, m := range mounts {
		if m.GetRecursiveReadOnly() {
			paths = append(paths, m.GetContainerPath())
		}
	}
	return paths
}

// signalOf writes a signal as the API does: SIGRTMIN+3.
func signalOf(s runtimeapi.Signal) corev1.Signal {
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return ""
	}
	name := strings.TrimPrefix(s.String(), "SIGNAL_")
	return corev1.Signal(strings.NewReplacer("PLUS", "+", "MINUS", "-").Replace(name))
}

func stateOf(s runtimeapi.ContainerState) plan.State {
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

// nanos reads a time of the runtime; zero and less mean that it is not set.
func nanos(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
