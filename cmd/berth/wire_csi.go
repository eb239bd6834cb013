package main

import (
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/status/events"
	"berth/node/plugins"
	"berth/volumes/csi"
)

// csiKey is the key of CSIDriver objects in the store.
const csiKey = "csi-drivers"

// newCSI creates the manager of CSI drivers and connects it to the volumes of pods.
func (b *berth) newCSI() {
	saved, err := b.store.NodeValue(csiKey)
	if err != nil {
		b.log.Warn("CSIDriver objects unavailable from the store, reading them from the server", "err", err)
	}
	o := csi.Options{
		RootDir: b.config.RootDir, NodeName: b.config.NodeName, Started: b.agent.Ready(),
		OnCall: b.metrics.ObserveCSICall, Log: b.log,
		RunningPods: b.agent.StatusCache.PodsToKeep, OnEvent: b.volumeEvent,
		VolumeName: b.host.volumes.CSIVolumeName, BuiltIn: b.newLocalVolumes(),
		Saved: saved, Save: func(state []byte) { b.store.PutNodeValue(csiKey, state) },
	}
	if b.cluster != nil {
		o.Client, o.OnChange = b.cluster.client, b.cluster.registration.Trigger
	}
	b.csi = csi.New(o)
	b.host.volumes.CSI = b.csi
}

// volumeEvent records an event about a volume of a pod, and of its claim unless that is nil.
func (b *berth) volumeEvent(
	pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, eventType, reason, message string,
) {
	ev := events.Event{Type: eventType, Reason: reason, Message: message}
	b.events.Record(events.PodRefOf(pod), ev)
	if claim == nil {
		return
	}
	ref := events.PodRef{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Kind: "PersistentVolumeClaim", APIVersion: "v1",
	}
	b.events.PodCreated(ref.UID)
	b.events.Record(ref, ev)
	b.events.PodDeleted(ref.UID) // limits how long the events are kept
}

// pluginWatcher creates the watcher of plugins that announce themselves with a socket.
func (b *berth) pluginWatcher() *plugins.Watcher {
	return plugins.New(plugins.Options{
		Dir: filepath.Join(b.config.RootDir, "plugins_registry"), Log: b.log,
		Handlers: map[string]plugins.Handler{plugins.CSIPlugin: b.csi, plugins.DevicePlugin: b.devices},
	})
}
