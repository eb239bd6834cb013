package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// KubeletService is the unit of the kubelet.
const KubeletService = "kubelet.service"

// Dropin is the file that keeps the kubelet from starting while berth.service is enabled. Tools such as
// kubeadm and node monitors restart kubelet.service, and a unit without [Install] cannot be disabled.
const Dropin = "/etc/systemd/system/kubelet.service.d/zz-berth.conf"

// DropinText is the content of Dropin.
const DropinText = `# Written by berth takeover and removed by berth handback.
[Unit]
ConditionPathExists=!/etc/systemd/system/multi-user.target.wants/berth.service
`

// RecordFile is the name of the record in the state directory of berth.
const RecordFile = "handover.json"

// Direction is where a hand-over leads.
type Direction string

// Directions of a hand-over.
const (
	Takeover Direction = "takeover"
	Handback Direction = "handback"
)

// Record is the state of a hand-over on disk. It exists from before the first change of the host
// until a handback is complete.
type Record struct {
	Version   int       `json:"version"`
	Direction Direction `json:"direction"`
	// Unit is the state of kubelet.service before the takeover, which a handback restores.
	Unit UnitState `json:"unit"`
	// Configuration is the configuration file of berth, and Previous the one before the takeover.
	Configuration string  `json:"configuration"`
	Previous      *string `json:"previous,omitempty"`
	RootDir       string  `json:"rootDir"`
	Pods          []Pod   `json:"pods,omitempty"` // of the node before the takeover
	// Mirrors are the statuses of the mirror pods before the takeover, by namespace/name.
	Mirrors   map[string]corev1.PodStatus `json:"mirrors,omitempty"`
	Completed bool                        `json:"completed"` // of a takeover: berth has become ready
	Released  bool                        `json:"released"`  // of a handback: berth's marks are removed
	Restored  bool                        `json:"restored"`  // of a handback: the configuration file is restored
	// Resized are the resources that a handback still has to write to the checkpoints of the kubelet.
	Resized map[types.UID]Allocation `json:"resized,omitempty"`
	// NodeCleaned means that a handback has removed labels and annotations of berth from the Node.
	NodeCleaned bool `json:"nodeCleaned,omitempty"`
}

const recordVersion = 1

// MirrorStatus returns the status of a mirror pod before a takeover that is not complete. nil: unknown.
// Later, the status is out of date.
func (r *Record) MirrorStatus(namespace, name string) *corev1.PodStatus {
	if r == nil || r.Direction != Takeover || r.Completed {
		return nil
	}
	if st, known := r.Mirrors[namespace+"/"+name]; known {
		return &st
	}
	return nil
}

// MirrorStatuses returns the statuses of the mirror pods among pods.
func MirrorStatuses(pods []*corev1.Pod) map[string]corev1.PodStatus {
	out := map[string]corev1.PodStatus{}
	for _, p := range pods {
		if podspec.IsMirror(p) {
			out[key(p)] = p.Status
		}
	}
	return out
}

// Turn sets the direction. Steps of the other direction count as not done.
func (r *Record) Turn(d Direction) {
	if r.Direction != d {
		r.Direction, r.Completed, r.Released, r.Restored, r.NodeCleaned = d, false, false, false, false
	}
}

// ReadRecord reads the record in a state directory. It is nil if there is none.
func ReadRecord(stateDir string) (*Record, error) {
	path := filepath.Join(stateDir, RecordFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &Record{}
	if err == nil {
		err = json.Unmarshal(content, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read hand-over record %s: %w", path, err)
	}
	if r.Version != recordVersion {
		return nil, fmt.Errorf("read hand-over record %s: unknown version %d", path, r.Version)
	}
	return r, nil
}

// Write writes the record. When it returns nil, the record survives a power failure.
func (r *Record) Write(stateDir string) error {
	r.Version = recordVersion
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(stateDir, 0o700)
	}
	if err == nil {
		err = WriteFile(filepath.Join(stateDir, RecordFile), string(content)+"\n", 0o600)
	}
	if err != nil {
		return fmt.Errorf("write hand-over record: %w", err)
	}
	return nil
}

// WriteFile replaces a file atomically and syncs it.
func WriteFile(path, content string, mode fs.FileMode) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return syncDir(filepath.Dir(path))
}

// RemoveRecord removes the record. It may be missing.
func RemoveRecord(stateDir string) error {
	if err := os.Remove(filepath.Join(stateDir, RecordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove hand-over record: %w", err)
	}
	return syncDir(stateDir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// AdoptedPods reports whether a takeover is complete. The pods of an incomplete one are the kubelet's.
func (r *Record) AdoptedPods() bool { return r.Direction == Takeover && r.Completed }
