package crifake

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// container changes its state from Created to Running to Exited. A start that fails changes it from
// Created to Exited directly.
type container struct {
	id, name                   string
	sandbox                    *sandbox
	config                     *runtimeapi.ContainerConfig
	image                      *runtimeapi.Image
	state                      runtimeapi.ContainerState
	created, started, finished time.Time
	exitCode                   int32
	reason, message            string
	process                    *process // of a started container
	starting, removing         bool
	memory                     uint64 // see SetMemoryUsage
}

// CreateContainer creates a container.
func (r *Runtime) CreateContainer(ctx context.Context,
	q *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	m, pod := q.GetConfig().GetMetadata(), q.GetSandboxConfig().GetMetadata()
	if m == nil || pod == nil {
		return nil, errors.New("container config must include metadata")
	}
	c := &container{
		name:   fmt.Sprintf("%s_%s_%s_%s_%d", m.Name, pod.Name, pod.Namespace, pod.Uid, m.Attempt),
		config: proto.CloneOf(q.Config), memory: 1 << 20,
	}
	if err := r.reserveContainer(c, q.PodSandboxId); err != nil {
		return nil, err
	}
	err := r.applyFault(ctx, "CreateContainer", q, Midway)
	r.mu.Lock()
	if err != nil {
		delete(r.names, c.name)
		r.mu.Unlock()
		return nil, err
	}
	c.created = time.Now()
	r.containers[c.id] = c
	r.mu.Unlock()
	r.emit(c.id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// reserveContainer checks the requirements of the container and reserves its name.
func (r *Runtime) reserveContainer(c *container, sandboxID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.sandbox = r.sandboxes[sandboxID]
	if c.sandbox == nil {
		return notFound("failed to find sandbox id %q", sandboxID)
	}
	if !c.sandbox.ready {
		return fmt.Errorf("sandbox container %q is not running", sandboxID)
	}
	c.id = r.newID()
	if err := r.reserve("container", c.name, c.id); err != nil {
		return err
	}
	ref := c.config.GetImage().GetImage()
	if c.image = r.resolve(ref); c.image == nil {
		delete(r.names, c.name)
		return notFound("failed to resolve image %q", ref)
	}
	return nil
}

// StartContainer starts a created container. A command below /no/such does not exist in any image.
func (r *Runtime) StartContainer(ctx context.Context,
	q *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[q.ContainerId]
	if c == nil {
		r.mu.Unlock()
		return nil, notFound("an error occurred when try to find container %q", q.ContainerId)
	}
	if err := c.startable(); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	c.starting = true
	r.mu.Unlock()
	err := r.applyFault(ctx, "StartContainer", q, Midway)
	r.mu.Lock()
	c.starting = false
	if cmd := c.config.GetCommand(); err == nil && len(cmd) > 0 && strings.HasPrefix(cmd[0], "/no/such/") {
		err = fmt.Errorf("failed to create containerd task: failed to create shim task: "+
			"OCI runtime create failed: exec: %q: no such file or directory", cmd[0])
	}
	if err != nil {
		c.state, c.finished, c.exitCode = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now(), 128
		c.reason, c.message = "StartError", err.Error()
		r.mu.Unlock()
		return nil, err
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now()
	p := r.newProcess(c)
	c.process = p
	r.mu.Unlock()
	r.emit(c.id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	r.goroutines.Go(func() { r.run(c, p) })
	return &runtimeapi.StartContainerResponse{}, nil
}

func (c *container) startable() error {
	switch {
	case c.state != runtimeapi.ContainerState_CONTAINER_CREATED:
		return fmt.Errorf("failed to set starting state for container %q: container is in %s state", c.id, c.state)
	case c.removing:
		return errors.New("container is in removing state, can't be started")
	case c.starting:
		return errors.New("container is already in starting state")
	case !c.sandbox.ready:
		return fmt.Errorf("sandbox container %q is not running", c.sandbox.id)
	}
	return nil
}

// exited records the exit of a container's process.
func (r *Runtime) exited(c *container, end exitResult) {
	r.mu.Lock()
	c.state, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now()
	c.exitCode, c.reason = end.code, end.reason
	r.mu.Unlock()
	close(c.process.done)
	r.emit(c.id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// Exit makes the process of a running container exit with a code and reason. An empty reason is
// derived from the code. Exit returns after the container has exited.
func (r *Runtime) Exit(id string, code int32, reason string) error {
	r.mu.Lock()
	c := r.containers[id]
	if c == nil || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return notFound("running container %q", id)
	}
	p := c.process
	r.mu.Unlock()
	p.exit(exitResult{code, reason})
	<-p.done
	return nil
}

// StopContainer stops a container.
func (r *Runtime) StopContainer(ctx context.Context,
	q *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[q.ContainerId]
	r.mu.Unlock()
	if c == nil {
		if r.opts.Containerd16 {
			return nil, notFound("an error occurred when try to find container %q", q.ContainerId)
		}
		return &runtimeapi.StopContainerResponse{}, nil
	}
	return &runtimeapi.StopContainerResponse{}, r.stop(ctx, c, time.Duration(q.Timeout)*time.Second)
}

// stop signals the process, waits for the grace period, and kills it.
func (r *Runtime) stop(ctx context.Context, c *container, grace time.Duration) error {
	r.mu.Lock()
	running, p := c.state == runtimeapi.ContainerState_CONTAINER_RUNNING, c.process
	r.mu.Unlock()
	if !running {
		return nil
	}
	if grace > 0 {
		p.signal()
		if err := p.wait(ctx, grace); err == nil || ctx.Err() != nil {
			return err
		}
	}
	p.exit(exitResult{137, ""})
	return p.wait(ctx, 0)
}

// RemoveContainer removes a container.
func (r *Runtime) RemoveContainer(ctx context.Context,
	q *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	r.mu.Lock()
	c := r.containers[q.ContainerId]
	r.mu.Unlock()
	if c == nil {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	return &runtimeapi.RemoveContainerResponse{}, r.remove(ctx, c)
}

func (r *Runtime) remove(ctx context.Context, c *container) error {
	if err := r.stop(ctx, c, 0); err != nil {
		return err
	}
	r.mu.Lock()
	if c.starting || c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return fmt.Errorf("failed to set removing state for container %q: container is in starting state, "+
			"can't be removed",
			c.id)
	}
	c.removing = true
	_, exists := r.containers[c.id]
	delete(r.containers, c.id)
	delete(r.names, c.name)
	r.mu.Unlock()
	if exists {
		r.emit(c.id, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
	return nil
}

// ListContainers lists containers.
func (r *Runtime) ListContainers(_ context.Context,
	q *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	f := q.GetFilter()
	for _, c := range r.containers {
		if f.GetId() != "" && f.GetId() != c.id || f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox.id ||
			f.GetState() != nil && f.GetState().State != c.state ||
			!selected(c.config.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		out.Containers = append(out.Containers, proto.CloneOf(&runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(),
			ImageRef: c.image.GetId(), ImageId: c.image.GetId(), State: c.state, CreatedAt: c.created.UnixNano(),
			Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		}))
	}
	return out, nil
}

// ContainerStatus returns the status of a container.
func (r *Runtime) ContainerStatus(_ context.Context,
	q *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, notFound("an error occurred when try to find container %q", q.ContainerId)
	}
	resp := &runtimeapi.ContainerStatusResponse{Status: r.statusOf(c)}
	if q.Verbose {
		limit := c.config.GetLinux().GetResources().GetMemoryLimitInBytes()
		resp.Info = map[string]string{"info": fmt.Sprintf(
			`{"runtimeSpec":{"linux":{"resources":{"memory":{"limit":%d}}}}}`,
			limit)}
	}
	return resp, nil
}

// SetMemoryUsage sets the working set of a container in bytes.
func (r *Runtime) SetMemoryUsage(id string, memory uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers[id].memory = memory
}

// ContainerStats returns only the memory usage of a container.
func (r *Runtime) ContainerStats(_ context.Context,
	q *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, notFound("an error occurred when try to find container %q", q.ContainerId)
	}
	memory := &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: c.memory}}
	return &runtimeapi.ContainerStatsResponse{Stats: &runtimeapi.ContainerStats{Memory: memory}}, nil
}

func (r *Runtime) statusOf(c *container) *runtimeapi.ContainerStatus {
	s := &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state, CreatedAt: c.created.UnixNano(),
		Image: c.config.GetImage(), ImageRef: c.image.GetId(), ImageId: c.image.GetId(),
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(), Mounts: c.config.GetMounts(),
		LogPath: c.logPath(), Message: c.message,
	}
	if !r.opts.Containerd16 {
		s.User = c.user()
		s.Resources = &runtimeapi.ContainerResources{Linux: c.config.GetLinux().GetResources()}
	}
	if digests := c.image.GetRepoDigests(); len(digests) > 0 {
		s.ImageRef = digests[0]
	}
	if !c.started.IsZero() {
		s.StartedAt = c.started.UnixNano()
	}
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		s.FinishedAt, s.ExitCode, s.Reason = c.finished.UnixNano(), c.exitCode, c.reason
		switch {
		case s.Reason != "":
		case s.ExitCode == 0:
			s.Reason = "Completed"
		default:
			s.Reason = "Error"
		}
	}
	return proto.CloneOf(s)
}

// user returns the user of the first process. User names cannot be resolved because there are no
// image contents.
func (c *container) user() *runtimeapi.ContainerUser {
	s := c.config.GetLinux().GetSecurityContext()
	u := &runtimeapi.LinuxContainerUser{
		Uid: s.GetRunAsUser().GetValue(), Gid: s.GetRunAsGroup().GetValue(),
		SupplementalGroups: []int64{s.GetRunAsGroup().GetValue()},
	}
	for _, g := range s.GetSupplementalGroups() {
		if !slices.Contains(u.SupplementalGroups, g) {
			u.SupplementalGroups = append(u.SupplementalGroups, g)
		}
	}
	return &runtimeapi.ContainerUser{Linux: u}
}

func (c *container) logPath() string {
	if c.config.GetLogPath() == "" || c.sandbox.config.GetLogDirectory() == "" {
		return ""
	}
	return filepath.Join(c.sandbox.config.GetLogDirectory(), c.config.GetLogPath())
}

// UpdateContainerResources changes the resources in the container's status.
func (r *Runtime) UpdateContainerResources(_ context.Context,
	q *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[q.ContainerId]
	if c == nil {
		return nil, notFound("failed to find container")
	}
	if c.config.Linux == nil {
		c.config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if c.config.Linux.Resources == nil {
		c.config.Linux.Resources = &runtimeapi.LinuxContainerResources{}
	}
	proto.Merge(c.config.Linux.Resources, q.GetLinux())
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// ReopenContainerLog creates a file at the log path if there is none.
func (r *Runtime) ReopenContainerLog(_ context.Context,
	q *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := r.runningContainer(q.ContainerId)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ReopenContainerLogResponse{}, r.appendLog(c, nil)
}

func (r *Runtime) runningContainer(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("failed to find container %q in store", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, fmt.Errorf("container is in %s state", c.state)
	}
	return c, nil
}
