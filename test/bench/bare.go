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

// bare makes pods by the three mutating calls alone, in the form in which the
// agent makes them.
type bare struct {
	b     *bench
	dir   string
	image string // ID
	mu    sync.Mutex
	made  []string
	n     int
}

func (b *bench) newBare(ctx context.Context) (*bare, error) {
	dir, err := os.MkdirTemp(b.host.Dir, "bare")
	if err != nil {
		return nil, err
	}
	st, err := b.host.Image.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: images.TestboxRef}})
	if err != nil {
		return nil, err
	}
	return &bare{b: b, dir: dir, image: st.GetImage().GetId()}, nil
}

// run makes one pod of one container, configured as the agent would, with the
// files that the agent would give it: the calls alone are the limit.
func (x *bare) run(ctx context.Context, args ...string) error {
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
	delete(sandbox.Labels, criconfig.OwnerLabel) // not the agent's: it leaves them alone
	sb, err := x.b.host.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	x.mu.Lock()
	x.made = append(x.made, sb.PodSandboxId)
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

// burst makes n pods, at most width at a time, and returns how long it took.
func (x *bare) burst(ctx context.Context, n, width int, args ...string) (time.Duration, error) {
	began := time.Now()
	gate := make(chan struct{}, width)
	errs := make(chan error, n)
	for range n {
		gate <- struct{}{}
		go func() { // each sends one error, and all are received below
			defer func() { <-gate }()
			errs <- x.run(ctx, args...)
		}()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return time.Since(began), first
}

// end stops and removes all pods at once, with a second of grace, and returns how
// long it took.
func (x *bare) end(ctx context.Context) (time.Duration, error) {
	x.mu.Lock()
	made := x.made
	x.made = nil
	x.mu.Unlock()
	began := time.Now()
	errs := make(chan error, len(made))
	for _, id := range made {
		go func() { errs <- x.endOne(ctx, id) }()
	}
	var first error
	for range made {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	took := time.Since(began)
	return took, first
}

func (x *bare) endOne(ctx context.Context, id string) error {
	r := x.b.host.Runtime
	list, err := r.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: id}})
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
