package main

import (
	"net/http"
	"os"
	"path/filepath"

	"berth/internal/localvolumes"
	"berth/node/plugins"
	"berth/volumes/csi"
	"berth/volumes/local"
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
		RunningPods: b.agent.StatusCache.PodsToKeep,
		BuiltIn:     b.newLocalVolumes(),
		Saved:       saved, Save: func(state []byte) { b.store.PutNodeValue(csiKey, state) },
	}
	if b.cluster != nil {
		o.Client, o.OnChange = b.cluster.client, b.cluster.registration.Trigger
	}
	b.csi = csi.New(o)
	b.host.volumes.CSI = b.csi
}

// localVolumesDir is the directory in the root directory with the volumes of the class local.
const localVolumesDir = "local-volumes"

// newLocalVolumes creates the driver of the class local. It is registered when a control server first asks for it, and
// from then on at each start.
func (b *berth) newLocalVolumes() map[string]csi.BuiltIn {
	dir := filepath.Join(b.config.RootDir, localVolumesDir)
	_, err := os.Stat(dir)
	b.localVolumes = local.New(local.Options{
		Dir: dir, NodeName: b.config.NodeName, Log: b.log, Reserve: b.config.DiskReserve,
	})
	return map[string]csi.BuiltIn{
		localvolumes.DriverName: {Client: b.localVolumes, Version: local.Version, Enabled: err == nil},
	}
}

// localVolumesHandler serves the volumes of the class local to the control server.
func (b *berth) localVolumesHandler() http.Handler {
	return b.localVolumes.Handler(func() { b.csi.Enable(localvolumes.DriverName) })
}

// pluginWatcher creates the watcher of plugins that announce themselves with a socket.
func (b *berth) pluginWatcher() *plugins.Watcher {
	return plugins.New(plugins.Options{
		Dir: filepath.Join(b.config.RootDir, "plugins_registry"), Log: b.log,
		Handlers: map[string]plugins.Handler{plugins.CSIPlugin: b.csi, plugins.DevicePlugin: b.devices},
	})
}
