package main

import (
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/cni/networks"
	"berth/cri"
	"berth/internal/apiclient"
)

// networksDir contains the attached networks of pods, in the state directory.
const networksDir = "networks"

func (b *berth) networksOptions() networks.Options {
	c := b.config.Network
	return networks.Options{
		Dir: filepath.Join(
			b.config.StateDir,
			networksDir,
		), ConfDir: filepath.Join(c.CNIConfDir, "networks.d"), BinDirs: c.CNIBinDirs,
	}
}

// networkRuntime is the runtime with additional pod networks. They are attached before a sandbox is
// reported as running and detached before it is stopped.
type networkRuntime struct {
	*cri.Client
	host *host
}

func (a networkRuntime) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error) {
	nets := a.host.networks
	requested, err := nets.Resolve(pod)
	if err != nil {
		return plan.Sandbox{}, err
	}
	if len(requested) == 0 {
		return a.Client.RunSandbox(ctx, pod, s)
	}
	defer nets.SandboxCreating(pod.UID)()
	sandbox, err := a.Client.RunSandbox(ctx, pod, s)
	if err != nil {
		return sandbox, err
	}
	netns, err := a.NetNS(ctx, sandbox.ID)
	if err == nil {
		err = nets.Attach(ctx, sandbox.ID, netns, pod, requested)
	}
	if err != nil {
		return plan.Sandbox{}, err
	}
	// Its IPs were not reported before.
	if sandbox, err = a.Sandbox(ctx, sandbox.ID); err != nil {
		return plan.Sandbox{}, err
	}
	return sandbox, nets.SetDefaultNetwork(sandbox.ID, a.host.network.Name(), sandbox.IPs)
}

func (a networkRuntime) StopSandbox(ctx context.Context, id string) error {
	if err := a.host.networks.Detach(ctx, id); err != nil {
		return err
	}
	return a.Client.StopSandbox(ctx, id)
}

// withNetworks adds the annotation with the network status to a pod.
func (h *host) withNetworks(pod *corev1.Pod) *corev1.Pod {
	status := h.networks.Status(pod.UID)
	if status == "" {
		return pod
	}
	annotated := *pod
	annotated.Annotations = maps.Clone(pod.Annotations)
	if annotated.Annotations == nil {
		annotated.Annotations = map[string]string{}
	}
	annotated.Annotations[networks.StatusAnnotation] = status
	return &annotated
}

// checkNetworks runs the CHECK command of the network plugins after startup and then periodically,
// until ctx ends.
func (b *berth) checkNetworks(ctx context.Context) {
	ticker := time.NewTicker(networksCheckInterval)
	defer ticker.Stop()
	select {
	case <-ctx.Done():
	case <-b.agent.Ready():
	}
	for ctx.Err() == nil {
		for _, t := range b.host.networks.Check(ctx) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: t.Pod.Namespace, Name: t.Pod.Name, UID: t.Pod.UID},
			}
			b.warnPod(pod, "NetworkCheckFailed", t.Message)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

const (
	networksCheckInterval = 10 * time.Minute

	networksRetryInterval = 30 * time.Second
	networksTimeout       = 10 * time.Second
)

// reportNetworks writes the network status annotation to the API server until ctx ends.
func (j *cluster) reportNetworks(ctx context.Context) {
	retry := time.NewTimer(networksRetryInterval)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.b.host.networks.StatusChanged():
		case <-retry.C:
		}
		failed := j.b.host.networks.ReportStatuses(
			func(p networks.Pod, annotation string) error { return j.reportNetwork(ctx, p, annotation) },
		)
		if failed {
			retry.Reset(networksRetryInterval)
		}
	}
}

func (j *cluster) reportNetwork(ctx context.Context, p networks.Pod, annotation string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": p.UID, "annotations": map[string]string{networks.StatusAnnotation: annotation},
	}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, networksTimeout)
	defer cancel()
	err = j.client.Patch(ctx, apiclient.Pods, p.Namespace, p.Name, types.StrategicMergePatchType, patch, nil, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // deleted, or a static pod
		return nil
	}
	if err != nil {
		j.b.log.Debug("network status update failed", "pod", p.Namespace+"/"+p.Name, "err", err)
	}
	return err
}
