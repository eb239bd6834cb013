package volumes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// marker records that a volume was set up. It is stored next to the volume, so that it survives a
// restart of the agent and is deleted with the pod's directory.
type marker struct {
	Version string `json:"version,omitempty"` // of the content
	Boot    string `json:"boot"`              // boot ID
	Mounted bool   `json:"mounted,omitempty"` // the directory is a mount point

	// Of a csi volume: its name in paths, and whether its setup was started and has not succeeded.
	SpecName   string `json:"specName,omitempty"`
	Incomplete bool   `json:"incomplete,omitempty"`
	Block      bool   `json:"block,omitempty"` // a raw block volume
}

// writeMarker replaces the marker atomically.
func (v *Volumes) writeMarker(uid types.UID, k kind, name string, m marker) error {
	dir := v.markerDir(uid, k, name)
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	path := filepath.Join(dir, markerName)
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return fmt.Errorf("write volume marker: %w", err)
	}
	return os.Rename(path+".tmp", path)
}

func (v *Volumes) readMarker(uid types.UID, k kind, name string) (m marker, ok bool) {
	data, err := os.ReadFile(filepath.Join(v.markerDir(uid, k, name), markerName))
	if err != nil || json.Unmarshal(data, &m) != nil || m.Boot == "" {
		return marker{}, false
	}
	return m, true
}

// setUp reads a volume's marker and checks that it is still valid. Only the files of an emptyDir on
// disk survive a reboot: mounts do not, a hostPath is checked again, and content that was not
// synced is written again.
func (v *Volumes) setUp(uid types.UID, k kind, name string) (m marker, ok bool) {
	m, ok = v.readMarker(uid, k, name)
	if !ok || m.Incomplete {
		return marker{}, false
	}
	if m.Boot != v.boot && (k != emptyDir || m.Mounted) {
		return marker{}, false
	}
	if k == hostPath {
		return m, true
	}
	dir := v.mountDir(uid, k, name, m)
	if k == csi { // without access to its file system, which may not respond
		return m, !m.Mounted || v.CSI != nil && v.CSI.Mounted(dir)
	}
	if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
		return marker{}, false
	}
	if m.Mounted {
		if is, err := isMount(dir); err != nil || !is {
			return marker{}, false
		}
	}
	return m, true
}
