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

// StartContainer creates the container of that name, links its log and starts
// it. It returns the container without asking the runtime again: it has the
// state Running and started just now.
//
// Whenever a container is there in the end, it is returned, also with an error,
// so that it can be looked after; without one its ID is empty. An instance of
// the same attempt that an earlier, cut-off call has left is replaced if it has
// never been started, else it is returned as it is: it was the one wanted.
func (c *Client) StartContainer(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerSetup) (plan.Container, error) {
	req, err := c.createRequest(ctx, pod, name, s)
	if err != nil {
		return plan.Container{}, err
	}
	m := making{
		req:    req,
		labels: map[string]string{},
		as: plan.Container{
			Name: name, SandboxID: s.Sandbox.ID, State: plan.Created, Attempt: s.Attempt,
			ImageID: cmp.Or(s.Image.Ref, s.Image.ID), LogPath: filepath.Join(s.LogDir, req.Config.LogPath),
			RecursiveReadOnly: recursiveReadOnly(req.Config.Mounts),
		},
	}
	maps.Copy(m.labels, podSelector(string(pod.UID)))
	if own, ok := criconfig.ParseContainer(req.Config.Labels, req.Config.Annotations); ok {
		m.as.SpecHash, m.as.Image, m.as.Kind, m.as.Devices = own.SpecHash, own.Image, own.Kind, own.Devices
	}
	var earlier *runtimeapi.Container
	err = c.call(ctx, verbCreateContainer, name, c.deadlines.CreateContainer, func(ctx context.Context) (err error) {
		m.as.ID, earlier, err = c.createContainer(ctx, &m)
		return err
	})
	m.as.CreatedAt = time.Now()
	switch {
	case err != nil:
		return c.leftContainer(ctx, &m, err), err
	case earlier != nil:
		return c.startedEarlier(ctx, name, earlier)
	}
	if err := c.links.make(pod.Namespace, pod.Name, name, m.as.ID, m.as.LogPath); err != nil {
		c.warn(err)
	}
	return c.start(ctx, m.as)
}

// making is a container on its way.
type making struct {
	req    *runtimeapi.CreateContainerRequest
	labels map[string]string // by which those of its pod are found
	as     plan.Container    // what it will be
}

func (c *Client) createRequest(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerSetup) (*runtimeapi.CreateContainerRequest, error) {
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
	c.tell(pod, criconfig.ContainerWarnings(node, pod, spec, s))
	// The runtime wants the sandbox's own configuration once more.
	sandbox, err := criconfig.Sandbox(node, pod, plan.SandboxSetup{
		Attempt: s.Sandbox.Attempt, CgroupParent: s.CgroupPar, LogDir: s.LogDir,
	})
	if err != nil {
		return nil, err
	}
	if target := criconfig.TargetContainer(pod, name); target != "" {
		id, err := c.running(ctx, pod, target)
		if err != nil {
			return nil, err
		}
		criconfig.SetTargetContainer(config, id)
	}
	return &runtimeapi.CreateContainerRequest{PodSandboxId: s.Sandbox.ID, Config: config, SandboxConfig: sandbox}, nil
}

// running returns the ID of the pod's running container of that name.
func (c *Client) running(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
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

// createContainer creates the container, clearing what an earlier call has left
// under its name. It returns the earlier one instead if that was started.
func (c *Client) createContainer(ctx context.Context, m *making) (id string, earlier *runtimeapi.Container, err error) {
	wait := reservedWait{until: time.Now().Add(c.deadlines.NameReservation)}
	for {
		resp, err := c.runtime.CreateContainer(ctx, m.req)
		if !reserved(err) {
			return resp.GetContainerId(), nil, err
		}
		left, findErr := c.findContainer(ctx, m)
		switch {
		case findErr != nil:
			return "", nil, findErr
		case left == nil:
			if !wait.again(ctx) {
				return "", nil, fmt.Errorf("an earlier attempt is still under way: %w", described{err})
			}
		case left.State == runtimeapi.ContainerState_CONTAINER_CREATED:
			// Never started, and of a configuration that may be out of date. If
			// it cannot be removed, its start may have been cut off and go on.
			if err := c.RemoveContainer(ctx, left.Id); err != nil && !wait.again(ctx) {
				return "", nil, fmt.Errorf("clear the left-over of an earlier attempt: %w", err)
			}
		default:
			return left.Id, left, nil
		}
	}
}

// startedEarlier returns a container that an earlier call has started, or has
// tried to: that error is told then.
func (c *Client) startedEarlier(ctx context.Context, name string, earlier *runtimeapi.Container) (plan.Container, error) {
	seen, err := c.Container(ctx, earlier.Id)
	if err != nil {
		return listedContainer(earlier), err
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
		// The runtime says more about it than the error does: that it has run
		// after all, or with which code it ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Leftover)
		defer cancel()
		if seen, lookErr := c.containerStatus(ctx, as.ID, as.SandboxID); lookErr == nil {
			return seen, err
		}
		return as, err
	}
	c.exits.Watch(as.ID)
	as.State = plan.Running
	as.StartedAt = time.Now()
	return as, nil
}

// leftContainer returns what a cut-off create has left, as far as one look tells.
func (c *Client) leftContainer(ctx context.Context, m *making, err error) plan.Container {
	if !unsettled(err) {
		return plan.Container{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Leftover)
	defer cancel()
	left, err := c.findContainer(ctx, m)
	if err != nil || left == nil {
		return plan.Container{}
	}
	seen := listedContainer(left)
	seen.LogPath = m.as.LogPath
	return seen
}

// findContainer returns the instance of the same attempt, nil if the runtime
// shows none.
func (c *Client) findContainer(ctx context.Context, m *making) (*runtimeapi.Container, error) {
	all, err := c.listContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: m.labels})
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.GetMetadata().GetName() == m.as.Name && l.GetMetadata().GetAttempt() == m.as.Attempt {
			return l, nil
		}
	}
	return nil, nil
}
