package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/checkpoint"
	"berth/node"
	"berth/node/devices"
	"berth/node/podresources"
)

// devicesKey is the key of the device allocations in the store.
const devicesKey = "devices"

// newDevices creates the device manager, with the persisted allocations of known pods.
func newDevices(b *berth, records map[types.UID]checkpoint.Record) *devices.Manager {
	persisted, err := b.store.NodeValue(devicesKey)
	if err != nil {
		b.log.Warn("device allocations are not available from the store, restoring them from the runtime", "err", err)
	}
	if err == nil && persisted == nil {
		persisted = kubeletDevices(b)
	}
	return devices.New(devices.Options{
		Dir: filepath.Join(
			b.config.RootDir,
			"device-plugins",
		), BootID: node.SystemInfo().BootID, Joined: !b.config.Standalone(),
		Checkpoint: persisted, PodKnown: mayHoldDevices(records),
		SaveCheckpoint: func(state []byte) { b.store.PutNodeValue(devicesKey, state) }, Flush: b.store.Flush,
		OnChange: b.devicesChanged, OnRegister: b.metrics.CountDevicePluginRegistration,
		OnAllocate: b.metrics.ObserveDeviceAllocation,
		Log:        b.log,
	})
}

// kubeletDevices returns the device checkpoint of a kubelet that this node had before. nil: none.
func kubeletDevices(b *berth) []byte {
	content, err := os.ReadFile(filepath.Join(b.config.RootDir, "device-plugins", "kubelet_internal_checkpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var state []byte
	if err == nil {
		state, err = devices.CheckpointOfKubelet(content)
	}
	if err != nil {
		b.log.Warn("device plugins of the kubelet unknown until they register", "err", err)
	}
	return state
}

// mayHoldDevices reports whether a pod can still hold persisted allocations. Terminated pods cannot: the
// previous process may have stopped before it released their devices, and they are no longer
// admitted, so nothing else would release them.
func mayHoldDevices(records map[types.UID]checkpoint.Record) func(types.UID) bool {
	return func(uid types.UID) bool {
		rec, known := records[uid]
		return known && !rec.Terminated()
	}
}

// devicesChanged updates everything that depends on the node's devices.
func (b *berth) devicesChanged() {
	capacity := b.devices.NodeResources().AdmissionCapacity
	b.admissionNode.Update(func(n *admission.Node) { n.Allocatable = withDevices(b.host.Allocatable(), capacity) })
	b.devices.ReportStats(b.metrics.SetDevices)
	b.agent.SyncAllPods()
	if b.cluster != nil {
		b.cluster.registration.Trigger()
	}
}

// withDevices adds devices to the resources of the host.
func withDevices(host, extended corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(host)
	maps.Copy(out, extended)
	return out
}

// runPodResources serves the PodResources API until ctx ends.
func (b *berth) runPodResources(ctx context.Context) error {
	select { // no answers before the running containers are known
	case <-b.agent.Ready():
	case <-ctx.Done():
		return nil
	}
	podresources.Run(ctx, podresources.Options{
		Dir: filepath.Join(b.config.RootDir, "pod-resources"), Log: b.log, Devices: b.devices.Allocated,
		Allocatable: b.devices.AllocatableDevices,
		Pods:        b.agent.StatusCache.ActivePods,
	})
	return nil
}

// runDevices serves device plugins until ctx ends.
func (b *berth) runDevices(ctx context.Context) error {
	select { // no allocations before the running containers are known
	case <-b.agent.Ready():
	case <-ctx.Done():
		return nil
	}
	b.devicesChanged() // report restored resources before their plugins register again
	return b.devices.Run(ctx)
}
