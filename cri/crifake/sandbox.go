package crifake

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type sandbox struct {
	id, name string
	config   *runtimeapi.PodSandboxConfig
	handler  string
	created  time.Time
	ready    bool
	ip       string // empty: on the host network, or released
	netns    string
}

func hostNetwork(c *runtimeapi.PodSandboxConfig) bool {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

// RunPodSandbox creates and starts a sandbox.
func (r *Runtime) RunPodSandbox(ctx context.Context,
	q *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	m := q.GetConfig().GetMetadata()
	if m == nil {
		return nil, fmt.Errorf("sandbox config must include metadata")
	}
	s := &sandbox{
		name:   fmt.Sprintf("%s_%s_%s_%d", m.Name, m.Namespace, m.Uid, m.Attempt),
		config: proto.CloneOf(q.Config), handler: q.RuntimeHandler, ready: true,
	}
	if err := r.reserveSandbox(s); err != nil {
		return nil, err
	}
	err := r.applyFault(ctx, "RunPodSandbox", q, Midway)
	r.mu.Lock()
	if err != nil {
		delete(r.names, s.name)
		r.mu.Unlock()
		return nil, err
	}
	s.created = time.Now()
	r.sandboxes[s.id] = s
	r.mu.Unlock()
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// reserveSandbox reserves the name, address and network namespace of the sandbox.
func (r *Runtime) reserveSandbox(s *sandbox) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !hostNetwork(s.config) && r.network != "" {
		return fmt.Errorf("failed to setup network for sandbox: cni plugin not initialized: %s", r.network)
	}
	s.id = r.newID()
	if err := r.reserve("sandbox", s.name, s.id); err != nil {
		return err
	}
	if !hostNetwork(s.config) {
		s.ip = fmt.Sprintf("10.88.%d.%d", r.ids>>8&0xff, r.ids&0xff)
		s.netns = "/var/run/netns/cni-" + s.id[:16]
	}
	return nil
}

// StopPodSandbox kills what runs in the sandbox and releases its address.
func (r *Runtime) StopPodSandbox(ctx context.Context,
	q *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	s := r.sandboxes[q.PodSandboxId]
	r.mu.Unlock()
	if s == nil {
		if r.opts.Containerd16 {
			return nil, notFound("an error occurred when try to find sandbox %q", q.PodSandboxId)
		}
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	return &runtimeapi.StopPodSandboxResponse{}, r.stopSandbox(ctx, s)
}

func (r *Runtime) stopSandbox(ctx context.Context, s *sandbox) error {
	for _, c := range r.containersOf(s) {
		if err := r.stop(ctx, c, 0); err != nil {
			return err
		}
	}
	r.mu.Lock()
	was := s.ready
	s.ready, s.ip = false, ""
	r.mu.Unlock()
	if was {
		r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// containersOf returns the containers of a sandbox.
func (r *Runtime) containersOf(s *sandbox) []*container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*container
	for _, c := range r.containers {
		if c.sandbox == s {
			out = append(out, c)
		}
	}
	return out
}

// RemovePodSandbox removes the sandbox and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context,
	q *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	r.mu.Lock()
	s := r.sandboxes[q.PodSandboxId]
	r.mu.Unlock()
	if s == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	for _, c := range r.containersOf(s) {
		if err := r.remove(ctx, c); err != nil {
			return nil, err
		}
	}
	r.emit(s.id, s, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, s.id)
	delete(r.names, s.name)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// ListPodSandbox lists sandboxes.
func (r *Runtime) ListPodSandbox(_ context.Context,
	q *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	f := q.GetFilter()
	for _, s := range r.sandboxes {
		if f.GetId() != "" && f.GetId() != s.id || f.GetState() != nil && f.GetState().State != s.state() ||
			!selected(s.config.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		out.Items = append(out.Items, proto.CloneOf(&runtimeapi.PodSandbox{
			Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.created.UnixNano(),
			Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(), RuntimeHandler: s.handler,
		}))
	}
	return out, nil
}

// PodSandboxStatus returns the status of a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context,
	q *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[q.PodSandboxId]
	if s == nil {
		return nil, notFound("an error occurred when try to find sandbox")
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: s.status()}
	if q.Verbose {
		info, err := s.info()
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": info}
	}
	return resp, nil
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	return proto.CloneOf(&runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.created.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(), RuntimeHandler: s.handler,
	})
}

// info returns the part of containerd's verbose status that the client reads.
func (s *sandbox) info() (string, error) {
	spec := specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}}}
	if s.netns != "" {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace,
			Path: s.netns})
	}
	b, err := json.Marshal(map[string]any{"runtimeSpec": spec})
	return string(b), err
}
