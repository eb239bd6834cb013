package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri"
	"berth/nodeapi"
	"berth/nodeapi/server"
	"berth/podspec"
)

// notFound is a 404 error with a custom message.
func notFound(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: fmt.Sprintf(format, args...),
	}}
}

// kubeletPod returns the requested pod.
func (b *berth) kubeletPod(ctx context.Context, ref server.PodRef) (*status.Snapshot, error) {
	if ref.UID == "" {
		return b.find(ctx, ref.Namespace, ref.Name)
	}
	b.agent.WaitForSync(ctx, syncTimeout)
	s, ok := b.agent.StatusCache.Get(types.UID(ref.UID))
	if !ok || s.Pod.Namespace != ref.Namespace || s.Pod.Name != ref.Name {
		return nil, nodeapi.NotFound(ref.Name)
	}
	return s, nil
}

// runningPods returns the running pods with the names and images of their containers.
func (b *berth) runningPods(ctx context.Context) (*corev1.PodList, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	list := &corev1.PodList{}
	for _, s := range b.agent.StatusCache.List() {
		pod := corev1.Pod{}
		pod.Namespace, pod.Name, pod.UID = s.Pod.Namespace, s.Pod.Name, s.Pod.UID
		for _, k := range s.Observed.Containers {
			if k.State == plan.Running {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: k.Name, Image: k.Image})
			}
		}
		if len(pod.Spec.Containers) > 0 || len(s.Observed.Sandboxes) > 0 && s.Observed.Sandboxes[0].Ready {
			list.Items = append(list.Items, pod)
		}
	}
	return list, nil
}

func (b *berth) kubeletLogs(ctx context.Context, req server.LogRequest, stdout, stderr io.Writer) error {
	s, err := b.kubeletPod(ctx, server.PodRef{Namespace: req.Namespace, Name: req.Pod, UID: req.UID})
	if err != nil {
		return err
	}
	if podspec.FindContainer(s.Pod, req.Container) == nil {
		return notFound("container %q not found in pod %q", req.Container, req.Pod)
	}
	k, err := s.Instance(req.Container, req.Previous)
	if err != nil {
		return badRequest("%s", err)
	}
	return b.writeLog(
		ctx,
		s,
		k,
		req.LogRequest,
		false,
		stdout,
		stderr,
	) // stops with the container instance, like the kubelet
}

// kubeletRunning returns the running instance of a container.
func (b *berth) kubeletRunning(ctx context.Context, req server.StreamRequest) (*status.Snapshot, plan.Container,
	error) {
	s, err := b.kubeletPod(ctx, req.PodRef)
	if err != nil {
		return nil, plan.Container{}, err
	}
	k, err := s.Instance(req.Container, false)
	switch {
	case podspec.FindContainer(s.Pod, req.Container) == nil, err != nil:
		return nil, k, notFound("container not found (%q)", req.Container)
	case k.State != plan.Running:
		return nil, k, badRequest("container %q is %s, not running", req.Container, k.State)
	}
	return s, k, nil
}

func streamsOf(req server.StreamRequest) cri.Streams {
	return cri.Streams{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, TTY: req.TTY}
}

func (b *berth) kubeletExec(ctx context.Context, req server.StreamRequest) (string, error) {
	_, k, err := b.kubeletRunning(ctx, req)
	if err != nil {
		return "", err
	}
	b.execs.TrackUserExec(k.ID, req.Command)
	return b.runtime.client.ExecURL(ctx, k.ID, req.Command, streamsOf(req))
}

func (b *berth) kubeletAttach(ctx context.Context, req server.StreamRequest) (string, error) {
	s, k, err := b.kubeletRunning(ctx, req)
	if err != nil {
		return "", err
	}
	// like the kubelet: the setting of the container has precedence
	if _, tty := s.Terminal(req.Container); tty != req.TTY {
		req.TTY, req.Stderr = tty, req.Stderr && !tty
	}
	return b.runtime.client.AttachURL(ctx, k.ID, streamsOf(req))
}

// reachable returns an error if the pod has no network.
func (b *berth) reachable(ctx context.Context, ref server.PodRef) error {
	s, err := b.kubeletPod(ctx, ref)
	if err != nil {
		return err
	}
	if _, err := s.NetworkSandbox(); err != nil {
		return badRequest("%s", err)
	}
	return nil
}

func (b *berth) kubeletDial(ctx context.Context, ref server.PodRef, port uint16) (nodeapi.Stream, error) {
	s, err := b.kubeletPod(ctx, ref)
	if err != nil {
		return nil, err
	}
	return b.dialLocal(ctx, s, port)
}
