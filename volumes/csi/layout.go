package csi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pluginName is the name of the kubelet's volume plugin.
const pluginName = "kubernetes.io/csi"

const (
	podVolumesDir = "kubernetes.io~csi" // in the directory volumes of a pod
	dataName      = "vol_data.json"
	stagingName   = "globalmount"
	ownerName     = ".berth" // marks a staged volume that a pod of berth uses or has used
	publishName   = "mount"
)

// volumeData is the content of vol_data.json. Names and order of its fields are those of the kubelet.
type volumeData struct {
	AttachmentID  string `json:"attachmentID,omitempty"`
	Driver        string `json:"driverName"`
	NodeName      string `json:"nodeName,omitempty"`
	SpecName      string `json:"specVolID,omitempty"`
	Handle        string `json:"volumeHandle"`
	LifecycleMode string `json:"volumeLifecycleMode,omitempty"`
}

func (d volumeData) key() volumeKey { return volumeKey{d.Driver, d.Handle} }

// volumeKey identifies a volume of a driver.
type volumeKey struct{ driver, handle string }

// uniqueName is the name of a volume in the status of a Node.
func (k volumeKey) uniqueName() corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(pluginName + "/" + k.driver + "^" + k.handle)
}

func hashed(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// attachmentName is the name of the VolumeAttachment of a volume on a node.
func attachmentName(k volumeKey, node string) string { return "csi-" + hashed(k.handle+k.driver+node) }

// inlineHandle is the handle of an inline volume.
func inlineHandle(uid types.UID, volume string) string { return "csi-" + hashed(string(uid)+volume) }

// stagedDir is the directory of the staging target and its data.
func (m *Manager) stagedDir(k volumeKey) string {
	return filepath.Join(m.pluginDir(), k.driver, hashed(k.handle))
}

func (m *Manager) pluginDir() string { return filepath.Join(m.opt.RootDir, "plugins", pluginName) }

// podVolumeDir is the directory of the publish target and its data.
func (m *Manager) podVolumeDir(uid types.UID, specName string) string {
	return filepath.Join(m.opt.RootDir, "pods", string(uid), "volumes", podVolumesDir, specName)
}

// readData reads vol_data.json. It is not an error if it does not exist. A file that a crash has
// truncated is an error.
func readData(dir string) (d volumeData, exists bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, dataName))
	if errors.Is(err, fs.ErrNotExist) {
		return d, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err == nil && (d.Driver == "" || d.Handle == "") {
		err = errors.New("no driver or volume handle")
	}
	if err != nil {
		return d, true, fmt.Errorf("read %s: %w", filepath.Join(dir, dataName), err)
	}
	return d, true, nil
}

// writeData writes vol_data.json atomically and creates the directory.
func writeData(dir string, d volumeData) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	path := filepath.Join(dir, dataName)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close()) // a loss of power must not leave a mount without its data
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(path+".tmp", path)
}

// removeData removes an unmounted target, its data and its directory. It fails if the target is not
// empty.
func removeData(dir, target string) error {
	for _, path := range []string{
		filepath.Join(dir, target), filepath.Join(dir, dataName+".tmp"), filepath.Join(dir, ownerName),
		filepath.Join(dir, dataName), dir,
	} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// own marks a staged volume. Volumes without the mark are those of another program, and stay as they are. It does
// nothing if the volume is not staged.
func (m *Manager) own(k volumeKey) error {
	dir := m.stagedDir(k)
	if _, exists, err := readData(dir); !exists && err == nil {
		return nil
	}
	return mark(dir)
}

// mark creates the mark in the directory of a staged volume.
func mark(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, ownerName), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("mark the staged volume: %w", err)
	}
	return f.Close()
}

// owned reports whether a staged volume has the mark.
func owned(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, ownerName))
	return err == nil
}

// publishedVolumes lists the volumes of all pods that may be published, by the directory of the pod's
// volume, including pods of another program: a volume that a kubelet uses is not unstaged either.
func (m *Manager) publishedVolumes() (map[string]volumeData, error) {
	pattern := filepath.Join(literal.Replace(m.opt.RootDir), "pods", "*", "volumes", podVolumesDir, "*")
	out, err := m.readAll(pattern, publishName)
	_, block, blockErr := m.blockVolumes()
	maps.Copy(out, block)
	return out, errors.Join(err, blockErr)
}

// stagedVolumes lists the volumes that may be staged, by their directory.
func (m *Manager) stagedVolumes() (map[string]volumeData, error) {
	out, err := m.readAll(filepath.Join(literal.Replace(m.pluginDir()), "*", "*"), stagingName)
	block, _, blockErr := m.blockVolumes()
	maps.Copy(out, block)
	return out, errors.Join(err, blockErr)
}

// literal escapes the characters that have a meaning in patterns.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// readAll reads the data of all directories that match a pattern. Directories without data are
// omitted, and those with unreadable data, which a loss of power has truncated, if nothing is mounted.
// Unreadable data of a mount is an error.
func (m *Manager) readAll(pattern, target string) (map[string]volumeData, error) {
	paths, err := filepath.Glob(filepath.Join(pattern, dataName))
	if err != nil {
		return nil, err
	}
	out := make(map[string]volumeData, len(paths))
	var failed error
	for _, path := range paths {
		dir := filepath.Dir(path)
		d, exists, err := readData(dir)
		switch {
		case err == nil && exists:
			out[dir] = d
		case err != nil:
			if mounted, mountErr := m.opt.mounted(filepath.Join(dir, target)); mounted || mountErr != nil {
				failed = errors.Join(failed, err, mountErr)
			}
		}
	}
	return out, failed
}
