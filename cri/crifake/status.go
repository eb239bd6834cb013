package crifake

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (r *Runtime) version() string {
	if r.opts.Containerd16 {
		return "1.6.20"
	}
	return "2.4.2"
}

// Version returns the emulated containerd version.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: r.version(),
		RuntimeApiVersion: "v1"}, nil
}

// Status is ready. The network is ready unless SetNetworkNotReady was called.
func (r *Runtime) Status(_ context.Context, q *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: r.network == ""}
	if r.network != "" {
		network.Reason, network.Message = "NetworkPluginNotReady", r.network
	}
	resp := &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, network,
	}}}
	if !r.opts.Containerd16 {
		features := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true}
		resp.RuntimeHandlers = []*runtimeapi.RuntimeHandler{{Features: features}, {Name: "runc", Features: features}}
		resp.Features = &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true}
	}
	if q.GetVerbose() {
		resp.Info = map[string]string{"config": "{}", "golang": "go"}
	}
	return resp, nil
}

// RuntimeConfig returns the cgroup driver.
func (r *Runtime) RuntimeConfig(context.Context,
	*runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	if r.opts.Containerd16 {
		return nil, status.Error(codes.Unimplemented,
			"unknown method RuntimeConfig for service runtime.v1.RuntimeService")
	}
	linux := &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: r.opts.CgroupDriver}
	return &runtimeapi.RuntimeConfigResponse{Linux: linux}, nil
}

// UpdateRuntimeConfig has no effect.
func (r *Runtime) UpdateRuntimeConfig(context.Context,
	*runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
