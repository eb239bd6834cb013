package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// StartContainer creates the container with that name, links its log and starts it. It returns the
// container in state Running, started now, without reading its status from the runtime.
//
// Whenever the container exists in the end, it is returned, also together with an error, so that
// the caller can track it. Otherwise its ID is empty. An instance of the same attempt that an
// interrupted call left behind is replaced if it was never started. If it was started, it is
// returned as is, because it is the requested instance.
func (c *Client) StartContainer(ctx context.Context, pod *corev1.Pod, name string,
	s plan.ContainerConfig) (plan.Container, error) {
	req, err := c.createRequest(ctx, pod, name, s)
	if err != nil {
		return plan.Container{}, err
	}
	m := creation{
		req:    req,
		labels: map[string]string{},
		container: plan.Container{
			Name: name, SandboxID: s.Sandbox.ID, State: plan.Created, Attempt: s.Attempt,
			ImageID: cmp.Or(s.Image.Ref, s.Image.ID), LogPath: filepath.Join(s.LogDir, req.Config.LogPath),
			RecursiveReadOnly: recursiveReadOnly(req.Config.Mounts),
		},
	}
	maps.Copy(m.labels, ownerSelector())
	maps.Copy(m.labels, podSelector(string(pod.UID)))
	if own, ok := criconfig.ParseContainer(req.Config.Labels, req.Config.Annotations); ok {
		m.container.SpecHash, m.container.Image = own.SpecHash, own.Image
		m.container.Kind, m.container.Devices = own.Kind, own.Devices
	}
	var earlier *runtimeapi.Container
	err = c.call(ctx, verbCreateContainer, name, c.deadlines.CreateContainer, func(ctx context.Context) (err error) {
		m.container.ID, earlier, err = c.createContainer(ctx, &m)
		return err
	})
	m.container.CreatedAt = time.Now()
	switch {
	case err != nil:
		return c.interruptedContainer(ctx, &m, err), err
	case earlier != nil:
		return c.adoptStarted(ctx, name, earlier)
	}
	if err := c.links.make(pod.Namespace, pod.Name, name, m.container.ID, m.container.LogPath); err != nil {
		c.warn(err)
	}
	return c.start(ctx, m.container)
}

// creation is a container that is being created.
type creation struct {
	req       *runtimeapi.CreateContainerRequest
	labels    map[string]string // select the containers of the pod
	container plan.Container    // the expected result
}

func (c *Client) createRequest(ctx context.Context, pod *corev1.Pod, name string,
	s plan.ContainerConfig) (*runtimeapi.CreateContainerRequest, error) {
	spec := podspec.FindContainer(pod, name)
	if spec == nil {
		return nil, &plan.Error{Kind: plan.Invalid, Reason: "CreateContainerConfigError",
			Err: fmt.Errorf("pod %s/%s has no container %q", pod.Namespace, pod.Name, name)}
	}
	node := c.node()
	config, err := criconfig.Container(node, pod, spec, s)
	if err != nil {
		return nil, err
	}
	c.reportWarnings(pod, criconfig.ContainerWarnings(node, pod, spec, s))
	// The request includes the sandbox configuration.
	sandbox, err := criconfig.Sandbox(node, pod, plan.SandboxConfig{
		Attempt: s.Sandbox.Attempt, CgroupParent: s.CgroupParent, LogDir: s.LogDir,
	})
	if err != nil {
		return nil, err
	}
	if target := criconfig.TargetContainer(pod, name); target != "" {
		id, err := c.runningContainerID(ctx, pod, target)
		if err != nil {
			return nil, err
		}
		criconfig.SetTargetContainer(config, id)
	}
	return &runtimeapi.CreateContainerRequest{PodSandboxId: s.Sandbox.ID, Config: config, SandboxConfig: sandbox}, nil
}

// runningContainerID returns the ID of the pod's running container with that name.
func (c *Client) runningContainerID(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	all, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: podSelector(string(pod.UID))})
	if err != nil {
		return "", err
	}
	for _, l := range all {
		if l.GetMetadata().GetName() == name && l.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return l.Id, nil
		}
	}
	return "", &plan.Error{Kind: plan.Other, Reason: "CreateContainerConfigError",
		Err: fmt.Errorf("target container %q is not running", name)}
}

// createContainer creates the container and removes what an earlier call left behind under its
// name. If that instance was started, createContainer returns it as earlier instead.
func (c *Client) createContainer(ctx context.Context,
	m *creation) (id string, earlier *runtimeapi.Container, err error) {
	wait := retryWait{until: time.Now().Add(c.deadlines.NameReservation)}
	for {
		resp, err := c.runtime.CreateContainer(ctx, m.req)
		if !isNameReserved(err) {
			return resp.GetContainerId(), nil, err
		}
		left, findErr := c.findContainer(ctx, m)
		switch {
		case findErr != nil:
			return "", nil, findErr
		case left == nil:
			if !wait.next(ctx) {
				return "", nil, fmt.Errorf("an earlier attempt is still in progress: %w", grpcError{err})
			}
		case left.State == runtimeapi.ContainerState_CONTAINER_CREATED:
			// Never started, and its configuration may be outdated. If it cannot be removed, an
			// interrupted start may still be in progress.
			if err := c.RemoveContainer(ctx, left.Id); err != nil && !wait.next(ctx) {
				return "", nil, fmt.Errorf("remove container of an earlier attempt: %w", err)
			}
		default:
			return left.Id, left, nil
		}
	}
}

// adoptStarted returns a container that an earlier call started. If that start failed, it returns
// the error too.
func (c *Client) adoptStarted(ctx context.Context, name string, earlier *runtimeapi.Container) (plan.Container, error) {
	seen, err := c.Container(ctx, earlier.Id)
	if err != nil {
		return containerFromList(earlier), err
	}
	if seen.State == plan.Exited && seen.StartedAt.IsZero() {
		return seen, &plan.Error{Kind: plan.Other, Reason: verbStartContainer.reason(),
			Err: fmt.Errorf("start container %s: %w", name, errors.New(seen.Message))}
	}
	return seen, nil
}

// start starts a created container.
func (c *Client) start(ctx context.Context, as plan.Container) (plan.Container, error) {
	err := c.call(ctx, verbStartContainer, as.Name, c.deadlines.StartContainer, func(ctx context.Context) error {
		_, err := c.runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: as.ID})
		return err
	})
	if err != nil {
		// The status has more information than the error: the container may have run after all, or
		// exited with a code.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Interrupted)
		defer cancel()
		if seen, statusErr := c.containerStatus(ctx, as.ID, as.SandboxID); statusErr == nil {
			return seen, err
		}
		return as, err
	}
	c.exits.Watch(as.ID)
	as.State = plan.Running
	as.StartedAt = time.Now()
	return as, nil
}

// interruptedContainer returns the container that an interrupted create left behind, if one list finds
// it.
func (c *Client) interruptedContainer(ctx context.Context, m *creation, err error) plan.Container {
	if !outcomeUnknown(err) {
		return plan.Container{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Interrupted)
	defer cancel()
	left, err := c.findContainer(ctx, m)
	if err != nil || left == nil {
		return plan.Container{}
	}
	seen := containerFromList(left)
	seen.LogPath = m.container.LogPath
	return seen
}

// findContainer returns the instance of the same attempt, or nil if the runtime lists none.
func (c *Client) findContainer(ctx context.Context, m *creation) (*runtimeapi.Container, error) {
	all, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: m.labels})
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.GetMetadata().GetName() == m.container.Name && l.GetMetadata().GetAttempt() == m.container.Attempt {
			return l, nil
		}
	}
	return nil, nil
}
