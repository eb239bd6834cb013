package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/agent/plan"
)

// Timeouts of plugin calls. Upstream has none for Allocate.
const (
	allocateTimeout  = 2 * time.Minute
	preferredTimeout = 10 * time.Second
	flushTimeout     = 2 * time.Second // of the checkpoint
	preStartTimeout  = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// Waiting reasons of containers.
const (
	reasonAllocate = "UnexpectedAdmissionError" // with which the kubelet rejects the pod
	reasonPreStart = "CreateContainerConfigError"
)

// Allocate allocates the devices that a container requests, immediately before it is created.
// Repeated calls return the same devices unless one is no longer healthy. Errors are *plan.Error.
// Devices that were allocated before an error remain allocated to the container.
func (d *Manager) Allocate(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	kind plan.ContainerKind,
) (plan.Devices, error) {
	var all plan.Devices
	for _, w := range d.requested(pod, c) {
		k := allocationKey{pod.UID, c.Name, w.name}
		allocated, err := d.allocateResource(ctx, k, w.n, kind == plan.Init)
		if err != nil {
			return plan.Devices{}, err
		}
		merge(&all, w.name, allocated)
	}
	return all, nil
}

// merge combines the responses of several plugins. The last value of a name wins.
func merge(all *plan.Devices, name corev1.ResourceName, h allocation) {
	if all.IDs == nil {
		all.IDs = map[corev1.ResourceName][]string{}
		all.Envs, all.Annotations = map[string]string{}, map[string]string{}
	}
	all.IDs[name] = h.IDs
	maps.Copy(all.Envs, h.Response.Envs)
	maps.Copy(all.Annotations, h.Response.Annotations)
	for _, m := range h.Response.Mounts {
		all.Mounts = slices.DeleteFunc(all.Mounts, func(x plan.Mount) bool {
			return x.ContainerPath == m.ContainerPath
		})
		all.Mounts = append(all.Mounts, m)
	}
	for _, n := range h.Response.Nodes {
		all.Nodes = slices.DeleteFunc(all.Nodes, func(x plan.DeviceNode) bool {
			return x.ContainerPath == n.ContainerPath
		})
		all.Nodes = append(all.Nodes, n)
	}
	for _, name := range h.Response.CDI {
		if !slices.Contains(all.CDI, name) {
			all.CDI = append(all.CDI, name)
		}
	}
}

// allocateResource allocates one resource. Allocations of the same resource are serialized, so that
// no other one can choose the same devices.
func (d *Manager) allocateResource(ctx context.Context, k allocationKey, n int, init bool) (allocation, error) {
	d.mu.Lock()
	turn := d.resourceFor(k.resource).allocating
	d.mu.Unlock()
	select {
	case <-turn:
		defer func() { turn <- struct{}{} }()
	case <-ctx.Done():
		return allocation{}, ctx.Err()
	}
	d.mu.Lock()
	why := d.unavailableReason(k, n)
	r := d.resources[k.resource]
	p, live, c, had := r.plugin, r.connected, d.allocations.candidatesFor(k, r.healthyIDs()), d.allocations[k]
	d.mu.Unlock()
	switch {
	case why != "":
		return allocation{}, &plan.Error{Kind: plan.Other, Reason: plan.ReasonDevices, Err: errors.New(why)}
	case !live: // the plugin is away, and the allocation can be reused
		return had, nil
	}
	options := p.options()
	h := allocation{
		IDs:        d.chooseDevices(ctx, p, options, c, n),
		Init:       init,
		Boot:       d.opt.BootID,
		NoPreStart: !options.GetPreStartRequired(),
	}
	if had.Response != nil && had.Boot == h.Boot && slices.Equal(had.IDs, h.IDs) {
		h.Response = had.Response
		d.storeAllocation(k, h)
	} else if err := d.callAllocate(ctx, p, k, &h); err != nil {
		return allocation{}, err
	}
	if options.GetPreStartRequired() {
		if err := preStart(ctx, p, h.IDs); err != nil {
			return allocation{}, &plan.Error{Kind: plan.Other, Reason: reasonPreStart,
				Err: fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)}
		}
	}
	return h, nil
}

// chooseDevices chooses n devices, with the plugin's preference if there is a choice and the plugin
// supports it. A failed call is ignored.
func (d *Manager) chooseDevices(
	ctx context.Context,
	p *plugin,
	options *pluginapi.DevicePluginOptions,
	c candidates,
	n int,
) []string {
	if !options.GetGetPreferredAllocationAvailable() || len(c.own) >= n || len(c.own)+len(c.free) == n {
		return c.pick(n, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, preferredTimeout)
	defer cancel()
	resp, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: slices.Concat(c.own, c.free), MustIncludeDeviceIDs: c.own, AllocationSize: int32(n),
		}},
	})
	if err != nil || len(resp.GetContainerResponses()) == 0 {
		d.opt.Log.Warn("device plugin GetPreferredAllocation failed", "resourceName", p.resource, "err", err)
		return c.pick(n, nil)
	}
	return c.pick(n, resp.ContainerResponses[0].DeviceIDs)
}

// callAllocate calls the plugin's Allocate and saves the allocation. The devices are allocated
// before the call: whatever its result is, no other container gets them until the pod releases
// them.
func (d *Manager) callAllocate(ctx context.Context, p *plugin, k allocationKey, h *allocation) error {
	d.mu.Lock()
	d.allocations[k] = *h
	d.save()
	d.mu.Unlock()
	d.notify()
	call, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	began := time.Now()
	resp, err := p.client.Allocate(call, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: h.IDs}},
	})
	d.opt.OnAllocate(string(k.resource), time.Since(began))
	if err == nil && len(resp.GetContainerResponses()) == 0 {
		err = errors.New("empty response")
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &plan.Error{
			Kind:   plan.Other,
			Reason: reasonAllocate,
			Err:    fmt.Errorf("Allocate failed due to %w, which is unexpected", err),
		}
	}
	h.Response = responseOf(resp.ContainerResponses[0])
	d.storeAllocation(k, *h)
	// A full disk must not prevent pods from starting: the container records its devices, from
	// which the allocation can be restored.
	ctx, cancel = context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := d.opt.Flush(ctx); err != nil {
		d.opt.Log.Debug("device checkpoint flush failed", "err", err)
	}
	d.opt.Log.Info("devices allocated", "podUID", string(k.pod), "containerName", k.container,
		"resourceName", string(k.resource), "devices", h.IDs)
	return nil
}

// storeAllocation updates an allocation, unless the pod has released it meanwhile.
func (d *Manager) storeAllocation(k allocationKey, h allocation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, ok := d.allocations[k]
	if ok && (was.Response != h.Response || was.NoPreStart != h.NoPreStart) {
		d.allocations[k] = h
		d.save()
	}
}

func preStart(ctx context.Context, p *plugin, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}

// responseOf converts a plugin's response.
func responseOf(r *pluginapi.ContainerAllocateResponse) *plan.Devices {
	a := &plan.Devices{Envs: r.GetEnvs(), Annotations: r.GetAnnotations()}
	for _, m := range r.GetMounts() {
		a.Mounts = append(
			a.Mounts,
			plan.Mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), ReadOnly: m.GetReadOnly()},
		)
	}
	for _, n := range r.GetDevices() {
		a.Nodes = append(
			a.Nodes,
			plan.DeviceNode{HostPath: n.GetHostPath(), ContainerPath: n.GetContainerPath(),
				Permissions: n.GetPermissions()},
		)
	}
	for _, c := range r.GetCdiDevices() {
		a.CDI = append(a.CDI, c.GetName())
	}
	return a
}
