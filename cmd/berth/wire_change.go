package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

// restart has containers of a pod run anew.
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

// debug puts an ephemeral container into a running pod.
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
