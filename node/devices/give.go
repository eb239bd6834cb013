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

// Bounds of calls to plugins. Upstream lets Allocate take for ever.
const (
	allocateBound  = 2 * time.Minute
	preferredBound = 10 * time.Second
	flushBound     = 2 * time.Second // of the store
	preStartBound  = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// Reasons of containers that are not started.
const (
	reasonAllocate = "UnexpectedAdmissionError" // the kubelet's, where it rejects the pod
	reasonPreStart = "CreateContainerConfigError"
)

// Allocate returns what a container gets of the devices that it wants, just before
// it is created: each time the same, unless one is not healthy any more. Errors
// are *plan.Error; with one, what was allocated stays the container's.
func (d *Manager) Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, kind plan.ContainerKind) (plan.Devices, error) {
	var all plan.Devices
	for _, w := range d.asked(pod, c) {
		k := slot{pod.UID, c.Name, w.name}
		given, err := d.give(ctx, k, w.n, kind == plan.Init)
		if err != nil {
			return plan.Devices{}, err
		}
		add(&all, w.name, given)
	}
	return all, nil
}

// add joins what several plugins give: of what two say of one name, the later
// counts.
func add(all *plan.Devices, name corev1.ResourceName, h holding) {
	if all.IDs == nil {
		all.IDs = map[corev1.ResourceName][]string{}
		all.Envs, all.Annotations = map[string]string{}, map[string]string{}
	}
	all.IDs[name] = h.IDs
	maps.Copy(all.Envs, h.Answer.Envs)
	maps.Copy(all.Annotations, h.Answer.Annotations)
	for _, m := range h.Answer.Mounts {
		all.Mounts = slices.DeleteFunc(all.Mounts, func(x plan.Mount) bool { return x.ContainerPath == m.ContainerPath })
		all.Mounts = append(all.Mounts, m)
	}
	for _, n := range h.Answer.Nodes {
		all.Nodes = slices.DeleteFunc(all.Nodes, func(x plan.DeviceNode) bool { return x.ContainerPath == n.ContainerPath })
		all.Nodes = append(all.Nodes, n)
	}
	for _, name := range h.Answer.CDI {
		if !slices.Contains(all.CDI, name) {
			all.CDI = append(all.CDI, name)
		}
	}
}

// give is Give for one resource: one at a time per resource, so that nobody
// else chooses between a choice and its being noted.
func (d *Manager) give(ctx context.Context, k slot, n int, init bool) (holding, error) {
	d.mu.Lock()
	turn := d.sortOf(k.resource).turn
	d.mu.Unlock()
	select {
	case <-turn:
		defer func() { turn <- struct{}{} }()
	case <-ctx.Done():
		return holding{}, ctx.Err()
	}
	d.mu.Lock()
	why := d.lacks(k, n)
	r := d.resources[k.resource]
	p, live, c, had := r.plugin, r.live, d.held.choices(k, r.healthyOnes()), d.held[k]
	d.mu.Unlock()
	switch {
	case why != "":
		return holding{}, &plan.Error{Kind: plan.Other, Reason: plan.ReasonDevices, Err: errors.New(why)}
	case !live: // and it has what it wants
		return had, nil
	}
	options := p.options()
	h := holding{IDs: d.choose(ctx, p, options, c, n), Init: init, Boot: d.opt.BootID, Alone: !options.GetPreStartRequired()}
	if had.Answer != nil && had.Boot == h.Boot && slices.Equal(had.IDs, h.IDs) {
		h.Answer = had.Answer
		d.keep(k, h)
	} else if err := d.allocate(ctx, p, k, &h); err != nil {
		return holding{}, err
	}
	if options.GetPreStartRequired() {
		if err := preStart(ctx, p, h.IDs); err != nil {
			return holding{}, &plan.Error{Kind: plan.Other, Reason: reasonPreStart,
				Err: fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)}
		}
	}
	return h, nil
}

// choose picks n devices, with the plugin's advice where there is a choice and
// the plugin gives any. Without its answer the choice is made all the same.
func (d *Manager) choose(ctx context.Context, p *plugin, options *pluginapi.DevicePluginOptions, c choice, n int) []string {
	if !options.GetGetPreferredAllocationAvailable() || len(c.own) >= n || len(c.own)+len(c.free) == n {
		return c.pick(n, nil)
	}
	ctx, cancel := context.WithTimeout(ctx, preferredBound)
	defer cancel()
	resp, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: slices.Concat(c.own, c.free), MustIncludeDeviceIDs: c.own, AllocationSize: int32(n),
		}},
	})
	if err != nil || len(resp.GetContainerResponses()) == 0 {
		d.opt.Log.Warn("a device plugin does not say which devices it prefers", "resource", p.resource, "err", err)
		return c.pick(n, nil)
	}
	return c.pick(n, resp.ContainerResponses[0].DeviceIDs)
}

// allocate has the plugin make the devices ready and keeps that they are held.
// They are held before the plugin is asked: whatever becomes of the call, nobody
// else is given them until the pod lets go of them.
func (d *Manager) allocate(ctx context.Context, p *plugin, k slot, h *holding) error {
	d.mu.Lock()
	d.held[k] = *h
	d.note()
	d.mu.Unlock()
	d.ring()
	call, cancel := context.WithTimeout(ctx, allocateBound)
	defer cancel()
	began := time.Now()
	resp, err := p.client.Allocate(call, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: h.IDs}},
	})
	d.opt.OnAllocate(string(k.resource), time.Since(began))
	if err == nil && len(resp.GetContainerResponses()) == 0 {
		err = errors.New("the device plugin has answered with nothing")
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &plan.Error{Kind: plan.Other, Reason: reasonAllocate, Err: fmt.Errorf("Allocate failed due to %w, which is unexpected", err)}
	}
	h.Answer = answerOf(resp.ContainerResponses[0])
	d.keep(k, *h)
	// A full disk must not keep pods from starting: the container carries its
	// devices' names, from which they are learnt again.
	ctx, cancel = context.WithTimeout(ctx, flushBound)
	defer cancel()
	if err := d.opt.Flush(ctx); err != nil {
		d.opt.Log.Debug("who holds which device is not on disk", "err", err)
	}
	d.opt.Log.Info("devices are given", "pod", string(k.pod), "container", k.container, "resource", string(k.resource), "devices", h.IDs)
	return nil
}

// keep notes what has become of a holding, unless the pod has gone meanwhile.
func (d *Manager) keep(k slot, h holding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, holds := d.held[k]
	if holds && (was.Answer != h.Answer || was.Alone != h.Alone) {
		d.held[k] = h
		d.note()
	}
}

func preStart(ctx context.Context, p *plugin, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartBound)
	defer cancel()
	_, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}

// answerOf is a plugin's answer in the words of containers.
func answerOf(r *pluginapi.ContainerAllocateResponse) *plan.Devices {
	a := &plan.Devices{Envs: r.GetEnvs(), Annotations: r.GetAnnotations()}
	for _, m := range r.GetMounts() {
		a.Mounts = append(a.Mounts, plan.Mount{HostPath: m.GetHostPath(), ContainerPath: m.GetContainerPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, n := range r.GetDevices() {
		a.Nodes = append(a.Nodes, plan.DeviceNode{HostPath: n.GetHostPath(), ContainerPath: n.GetContainerPath(), Permissions: n.GetPermissions()})
	}
	for _, c := range r.GetCdiDevices() {
		a.CDI = append(a.CDI, c.GetName())
	}
	return a
}
