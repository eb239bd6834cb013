package main

import (
	"net/http"
	"os"
	"path/filepath"

	"berth/internal/localvolumes"
	"berth/volumes/csi"
	"berth/volumes/local"
)

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
