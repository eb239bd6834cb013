package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cni"
	"berth/cri"
	"berth/nodeapi"
)

// running returns the running instance of a container.
func (b *berth) running(ctx context.Context, namespace, name, container string) (plan.Container, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return plan.Container{}, err
	}
	k, err := s.RunningInstance(container)
	if err != nil {
		return k, badRequest("%s", err)
	}
	return k, nil
}

func (b *berth) execURL(ctx context.Context, req nodeapi.ExecRequest) (string, error) {
	k, err := b.running(ctx, req.Namespace, req.Pod, req.Container)
	if err != nil {
		return "", err
	}
	b.execs.TrackUserExec(k.ID, req.Command)
	return b.runtime.client.ExecURL(
		ctx,
		k.ID,
		req.Command,
		cri.Streams{Stdin: req.Stdin, Stdout: true, Stderr: !req.TTY, TTY: req.TTY},
	)
}

func (b *berth) attach(ctx context.Context, req nodeapi.AttachRequest) (nodeapi.AttachResponse, error) {
	k, err := b.running(ctx, req.Namespace, req.Pod, req.Container)
	if err != nil {
		return nodeapi.AttachResponse{}, err
	}
	s, err := b.find(ctx, req.Namespace, req.Pod)
	if err != nil {
		return nodeapi.AttachResponse{}, err
	}
	stdin, tty := s.Terminal(req.Container)
	if req.Stdin && !stdin {
		return nodeapi.AttachResponse{}, badRequest(
			"container %q does not accept stdin: its pod does not set stdin: true",
			req.Container,
		)
	}
	url, err := b.runtime.client.AttachURL(
		ctx,
		k.ID,
		cri.Streams{Stdin: req.Stdin, Stdout: true, Stderr: !tty, TTY: tty},
	)
	return nodeapi.AttachResponse{URL: url, TTY: tty}, err
}

// dialPod connects to a port on the loopback interface of the pod.
func (b *berth) dialPod(ctx context.Context, namespace, name string, port uint16) (nodeapi.Stream, error) {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	conn, err := b.dialLocal(ctx, s, port)
	if err != nil {
		return nil, fmt.Errorf("port %d of pod %s/%s: %w", port, namespace, name, err)
	}
	return conn, nil
}

// dialLocal connects to a port in the network namespace of a pod.
func (b *berth) dialLocal(ctx context.Context, s *status.Snapshot, port uint16) (nodeapi.Stream, error) {
	sandbox, err := s.NetworkSandbox()
	if err != nil {
		return nil, badRequest("%s", err)
	}
	path := "" // empty: the host's
	if sandbox != "" {
		if path, err = b.runtime.client.NetNS(ctx, sandbox); err != nil {
			return nil, err
		}
		if path == "" { // do not fall back to the host's network namespace
			return nil, badRequest("the network namespace of the pod is unknown")
		}
	}
	return cni.DialLocal(ctx, path, port)
}

// restart restarts containers of a pod.
func (b *berth) restart(ctx context.Context, req nodeapi.RestartRequest) error {
	s, err := b.find(ctx, req.Namespace, req.Pod)
	if err != nil {
		return err
	}
	if err := b.agent.RestartContainers(ctx, s.Pod.UID, req.Containers); err != nil {
		return badRequest("%s", err)
	}
	return nil
}

// debug adds an ephemeral container to a running pod.
func (b *berth) debug(ctx context.Context, namespace, name string, add corev1.EphemeralContainer) error {
	s, err := b.find(ctx, namespace, name)
	if err != nil {
		return err
	}
	if err := b.agent.AddEphemeralContainer(ctx, s.Pod.UID, add); err != nil {
		return badRequest("%s", err)
	}
	return nil
}
