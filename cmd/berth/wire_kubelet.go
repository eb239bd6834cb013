package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri"
	"berth/node/stats"
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
	return b.agent.StatusCache.RunningPods(), nil
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
	// stops with the container instance, like the kubelet
	return b.podLogs.Write(ctx, s.Pod.UID, k, logOptions(req.LogRequest, stdout, stderr), false)
}

// kubeletRunning returns the running instance of a container.
func (b *berth) kubeletRunning(
	ctx context.Context,
	req server.StreamRequest,
) (s *status.Snapshot, k plan.Container, err error) {
	if s, err = b.kubeletPod(ctx, req.PodRef); err != nil {
		return nil, k, err
	}
	if _, err := s.Instance(req.Container, false); err != nil || podspec.FindContainer(s.Pod, req.Container) == nil {
		return nil, k, notFound("container not found (%q)", req.Container)
	}
	if k, err = s.RunningInstance(req.Container); err != nil {
		return nil, k, badRequest("%s", err)
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

// kubeletCheckpoint writes a checkpoint of a container below the root directory and returns the path.
func (b *berth) kubeletCheckpoint(ctx context.Context, req server.CheckpointRequest) (string, error) {
	s, k, err := b.kubeletRunning(ctx, server.StreamRequest{PodRef: req.PodRef, Container: req.Container})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.config.RootDir, "checkpoints")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	archive := filepath.Join(dir, server.CheckpointName(s.Pod.Namespace, s.Pod.Name, req.Container, time.Now()))
	b.log.Info("container checkpoint requested", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "containerName", req.Container)
	return archive, b.runtime.client.CheckpointContainer(ctx, k.ID, archive, req.Timeout)
}

// newStats creates the collector of resource usage.
func (b *berth) newStats() *stats.Collector {
	return &stats.Collector{
		Cgroups: b.host.cgroups, Volumes: b.host.volumes, Runtime: b.runtime.client,
		Pods:     func() []*status.Snapshot { return b.agent.StatusCache.List() },
		NodeName: b.config.NodeName, RootDir: b.config.RootDir, Log: b.log,
		CPUs: int(b.host.resources.Capacity.Cpu().Value()), CSIStats: b.csi.Stats,
	}
}

// nodeStats measures the usage of the node and its pods for the kubelet HTTP API.
func (b *berth) nodeStats(ctx context.Context, disks bool) (server.Stats, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.stats.Stats(ctx, disks)
}

// top measures the usage of pods for the local API.
func (b *berth) top(ctx context.Context, filter nodeapi.PodFilter, window time.Duration) (nodeapi.Top, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.stats.Top(ctx, filter, window)
}
