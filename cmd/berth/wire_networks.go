package main

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/cni/networks"
	"berth/cri"
	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
)

func (b *berth) networksOptions() networks.Options {
	c := b.config.Network
	return networks.Options{
		Dir: filepath.Join(
			b.config.StateDir,
			nodeconfig.NetworksDir,
		), ConfDir: filepath.Join(c.CNIConfDir, "networks.d"), BinDirs: c.CNIBinDirs,
	}
}

// networkRuntime is the runtime with additional pod networks.
type networkRuntime struct {
	*cri.Client
	sandboxes *networks.Sandboxes
}

func (b *berth) newNetworkRuntime() networkRuntime {
	return networkRuntime{b.runtime.client, &networks.Sandboxes{
		Runtime: b.runtime.client, Networks: b.host.networks, DefaultNetwork: b.host.network.Name,
	}}
}

func (a networkRuntime) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error) {
	return a.sandboxes.RunSandbox(ctx, pod, s)
}

func (a networkRuntime) StopSandbox(ctx context.Context, id string) error {
	return a.sandboxes.StopSandbox(ctx, id)
}

// checkNetworks reports attachments that differ from their desired state, until ctx ends.
func (b *berth) checkNetworks(ctx context.Context) {
	b.host.networks.RunChecks(ctx, b.agent.Ready(), func(f networks.CheckFailure) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.Pod.Namespace, Name: f.Pod.Name, UID: f.Pod.UID}}
		b.warnPod(pod, "NetworkCheckFailed", f.Message)
	})
}

// reportNetworks writes the network status annotation to the API server until ctx ends.
func (j *cluster) reportNetworks(ctx context.Context) {
	patch := func(ctx context.Context, p networks.Pod, body []byte) error {
		const kind = types.StrategicMergePatchType
		return j.client.Patch(ctx, apiclient.Pods, p.Namespace, p.Name, kind, body, nil, "status")
	}
	j.b.host.networks.RunReports(ctx, patch, j.b.log)
}
