package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
	"berth/test/images"
)

// baseline creates pods with only the three mutating CRI calls, in the form that the agent uses.
type baseline struct {
	b         *bench
	dir       string
	image     string // image ID
	mu        sync.Mutex
	sandboxes []string
	n         int
}

func (b *bench) newBaseline(ctx context.Context) (*baseline, error) {
	dir, err := os.MkdirTemp(b.host.Dir, "bare")
	if err != nil {
		return nil, err
	}
	st, err := b.host.Image.ImageStatus(ctx,
		&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: images.TestboxRef}})
	if err != nil {
		return nil, err
	}
	return &baseline{b: b, dir: dir, image: st.GetImage().GetId()}, nil
}

// run creates one pod with one container, with the configuration and files that the agent would use. The
// duration of the calls is the lower bound for the agent.
func (x *baseline) run(ctx context.Context, args ...string) error {
	x.mu.Lock()
	x.n++
	name := fmt.Sprintf("bare%d", x.n)
	x.mu.Unlock()
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = name, "bare", types.UID(name)
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: images.TestboxRef, Args: args}}
	podspec.SetDefaults(pod)
	logs := filepath.Join(x.dir, name)
	hosts, message := filepath.Join(logs, "hosts"), filepath.Join(logs, "message")
	if err := os.MkdirAll(filepath.Join(logs, "c"), 0o755); err != nil {
		return err
	}
	for _, file := range []string{hosts, message} {
		if err := os.WriteFile(file, []byte("127.0.0.1 localhost\n"), 0o666); err != nil {
			return err
		}
	}
	parent := filepath.Join(x.b.host.CgroupRoot, "bare", name)
	node := criconfig.Node{Name: "bare"}
	sandbox, err := criconfig.Sandbox(node, pod, plan.SandboxConfig{CgroupParent: parent, LogDir: logs})
	if err != nil {
		return err
	}
	delete(sandbox.Labels, criconfig.OwnerLabel) // the agent ignores pods without its label
	sb, err := x.b.host.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.sandboxes = append(x.sandboxes, sb.PodSandboxId)
	x.mu.Unlock()
	config, err := criconfig.Container(node, pod, &pod.Spec.Containers[0], plan.ContainerConfig{
		Sandbox: plan.Sandbox{ID: sb.PodSandboxId}, CgroupParent: parent, LogDir: logs, Image: plan.Image{ID: x.image},
		Mounts: []plan.Mount{
			{HostPath: hosts, ContainerPath: "/etc/hosts"},
			{HostPath: message, ContainerPath: "/dev/termination-log"},
		},
	})
	if err != nil {
		return err
	}
	delete(config.Labels, criconfig.OwnerLabel)
	c, err := x.b.host.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: sb.PodSandboxId, SandboxConfig: sandbox, Config: config,
	})
	if err != nil {
		return err
	}
	_, err = x.b.host.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId})
	return err
}

// burst creates n pods, at most width in parallel, and returns the duration.
func (x *baseline) burst(ctx context.Context, n, width int, args ...string) (time.Duration, error) {
	start := time.Now()
	tokens := make(chan struct{}, width)
	errs := make(chan error, n)
	for range n {
		tokens <- struct{}{}
		go func() { // every goroutine sends exactly one result
			defer func() { <-tokens }()
			errs <- x.run(ctx, args...)
		}()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return time.Since(start), first
}

// removeAll stops and removes all pods in parallel, with a grace period of one second, and returns the
// duration.
func (x *baseline) removeAll(ctx context.Context) (time.Duration, error) {
	x.mu.Lock()
	sandboxes := x.sandboxes
	x.sandboxes = nil
	x.mu.Unlock()
	start := time.Now()
	errs := make(chan error, len(sandboxes))
	for _, id := range sandboxes {
		go func() { errs <- x.removePod(ctx, id) }()
	}
	var first error
	for range sandboxes {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	took := time.Since(start)
	return took, first
}

func (x *baseline) removePod(ctx context.Context, id string) error {
	r := x.b.host.Runtime
	list, err := r.ListContainers(ctx,
		&runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return err
	}
	for _, c := range list.Containers {
		if _, err := r.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: c.Id, Timeout: 1}); err != nil {
			return err
		}
		if _, err := r.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
			return err
		}
	}
	if _, err := r.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err = r.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}
