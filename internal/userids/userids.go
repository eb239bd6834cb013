package userids

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// PerPod is the number of user IDs and of group IDs of a pod.
const PerPod = 1 << 16

const fileName = "userns"

// Options configures an Allocator.
type Options struct {
	RootDir string // the directories of pods are in <root>/pods
	MaxPods int    // number of ranges if subordinate IDs are not configured
	EtcDir  string // directory of subuid and subgid; empty: /etc
}

// Allocator allocates ranges of host IDs. It is safe for concurrent use.
type Allocator struct {
	pods   string
	first  uint32 // first ID of the range
	ranges int    // number of ranges of pods
	mu     sync.Mutex
}

// New reads the range configured for the host. It is an error if the range is invalid, or too small
// for MaxPods.
func New(o Options) (*Allocator, error) {
	etc := o.EtcDir
	if etc == "" {
		etc = "/etc"
	}
	ids := &Allocator{pods: filepath.Join(o.RootDir, "pods"), first: PerPod, ranges: min(o.MaxPods, 1<<16-2)}
	users, err := subordinate(filepath.Join(etc, "subuid"))
	if err != nil {
		return nil, err
	}
	groups, err := subordinate(filepath.Join(etc, "subgid"))
	switch {
	case err != nil:
		return nil, err
	case users != groups:
		return nil, fmt.Errorf(
			"%s: the user kubelet has IDs %v in subuid and %v in subgid; they must be the same",
			etc,
			users,
			groups,
		)
	case users == (span{}):
		return ids, nil
	}
	if err := users.check(o.MaxPods); err != nil {
		return nil, fmt.Errorf("%s/subuid: the user kubelet: %w", etc, err)
	}
	ids.first, ids.ranges = uint32(users.first), int(users.count/PerPod)
	return ids, nil
}

// Allocate returns the first of the PerPod host IDs of a pod: the existing range, or a free one.
// The directory of the pod must exist.
func (s *Allocator) Allocate(uid string) (first uint32, err error) {
	if uid == "" || uid[0] == '.' || strings.ContainsRune(uid, '/') {
		return 0, fmt.Errorf("allocate user IDs: %q is not a pod UID", uid)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, err = s.read(uid)
	if !errors.Is(err, fs.ErrNotExist) {
		return first, err
	}
	taken, err := s.taken()
	if err != nil {
		return 0, err
	}
	for i := range s.ranges {
		first := s.first + uint32(i)*PerPod
		if !taken[first] {
			return first, s.write(uid, first)
		}
	}
	return 0, fmt.Errorf("all %d ranges of user IDs are allocated", s.ranges)
}

// taken returns the allocated ranges.
func (s *Allocator) taken() (map[uint32]bool, error) {
	entries, err := os.ReadDir(s.pods)
	if err != nil {
		return nil, fmt.Errorf("list pods with user IDs: %w", err)
	}
	out := map[uint32]bool{}
	for _, e := range entries {
		if e.Name()[0] == '.' { // being deleted
			continue
		}
		first, err := s.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err // the IDs of that pod are unknown
		}
		out[first] = true
	}
	return out, nil
}

// mapping is the content of a pod's file.
type mapping struct {
	UIDs []idMapping `json:"uidMappings"`
	GIDs []idMapping `json:"gidMappings"`
}

type idMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

func (s *Allocator) file(uid string) string { return filepath.Join(s.pods, uid, fileName) }

func (s *Allocator) read(uid string) (uint32, error) {
	text, err := os.ReadFile(s.file(uid))
	if err != nil {
		return 0, err
	}
	var m mapping
	if err := json.Unmarshal(text, &m); err != nil {
		return 0, fmt.Errorf("read %s: %w", s.file(uid), err)
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].ContainerID != 0 ||
		m.UIDs[0].Length != PerPod ||
		m.UIDs[0].HostID < PerPod ||
		m.UIDs[0].HostID%PerPod != 0 {
		return 0, fmt.Errorf("%s: not a range of %d IDs, the same for users and groups", s.file(uid), PerPod)
	}
	return m.UIDs[0].HostID, nil
}

// write writes the file of a pod atomically, before any process uses its IDs.
func (s *Allocator) write(uid string, first uint32) (err error) {
	one := []idMapping{{HostID: first, Length: PerPod}}
	text, err := json.Marshal(mapping{UIDs: one, GIDs: one})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("store user IDs: %w", err)
		}
	}()
	tmp := s.file(uid) + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, s.file(uid))
}
