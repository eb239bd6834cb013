package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent"
	"berth/agent/checkpoint"
	"berth/node"
	"berth/node/devices"
)

// devicesNote is the store's key of who holds which device.
const devicesNote = "devices"

// newDevices makes the other side of device plugins, with what was given in an
// earlier life to pods that are still known.
func newDevices(b *berth, records map[types.UID]checkpoint.Record) *devices.Manager {
	kept, err := b.store.NodeValue(devicesNote)
	if err != nil {
		b.log.Warn("who holds which device is not known from the store: it is learnt from the runtime", "err", err)
	}
	return devices.New(devices.Options{
		Dir: filepath.Join(b.config.RootDir, "device-plugins"), BootID: node.SystemInfo().BootID, Joined: !b.config.Standalone(),
		Checkpoint: kept, PodKnown: mayHold(records),
		SaveCheckpoint: func(state []byte) { b.store.PutNodeValue(devicesNote, state) }, Flush: b.store.Flush,
		OnChange: b.devicesChanged, OnRegister: b.metrics.CountDevicePluginRegistration, OnAllocate: b.metrics.ObserveDeviceAllocation,
		Log: b.log,
	})
}

// mayHold tells which pods may still hold what an earlier life has given them: not
// those that are over. That life may have died before it took their devices back, and
// in this one they get no place on the node that they could give up.
func mayHold(records map[types.UID]checkpoint.Record) func(types.UID) bool {
	return func(uid types.UID) bool {
		rec, known := records[uid]
		return known && rec.Memory.Phase != corev1.PodSucceeded && rec.Memory.Phase != corev1.PodFailed
	}
}

// devicesChanged tells everybody whom the node's devices concern.
func (b *berth) devicesChanged() {
	room := b.devices.NodeResources().AdmissionCapacity
	b.offering.change(func(n *admission.Node) { n.Allocatable = withDevices(b.host.Allocatable(), room) })
	for _, f := range b.devices.Stats() {
		b.metrics.SetDevices(f.Resource, f.Listed, f.Healthy, f.Allocated)
	}
	b.agent.SyncAllPods()
	if b.joined != nil {
		b.joined.presence.Trigger()
	}
}

// withDevices adds devices to what the host itself has.
func withDevices(of, more corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(of)
	maps.Copy(out, more)
	return out
}

// recallDevices learns from running containers what they were given.
func (b *berth) recallDevices(uid types.UID, pod agent.RuntimePod) {
	for _, k := range pod.Containers {
		if k.Live() && len(k.Devices) > 0 {
			b.devices.RestoreAllocation(uid, k.Name, k.Kind, k.Devices)
		}
	}
}

// checkDevices adds every resource that a device plugin has registered.
func (b *berth) checkDevices(add addItem) {
	if err := b.devices.RegistrationError(); err != nil {
		add("device plugins", false, err, "", "make room for the socket: no device plugin can register")
	}
	for _, f := range b.devices.Stats() {
		var err error
		switch {
		case !f.Connected:
			err = errors.New("its device plugin is not there")
		case f.Healthy < f.Listed:
			err = fmt.Errorf("%d of %d are not healthy", f.Listed-f.Healthy, f.Listed)
		}
		add("devices "+f.Resource, false, err, fmt.Sprintf("%d listed, %d healthy, %d given", f.Listed, f.Healthy, f.Allocated),
			"see the log of the device plugin: pods that want such a device wait for it")
	}
}

// runDevices serves plugins until ctx ends.
func (b *berth) runDevices(ctx context.Context) error {
	select { // nobody is given anything before what runs is known
	case <-b.agent.Ready():
	case <-ctx.Done():
		return nil
	}
	b.devicesChanged() // what is known from an earlier life is listed before its plugin is back
	return b.devices.Run(ctx)
}
