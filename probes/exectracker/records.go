package exectracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// record is the persisted state of a running command.
type record struct {
	Container   string        `json:"container"`
	Command     []string      `json:"command"`
	RequestedAt time.Duration `json:"began"`              // since boot
	Sessions    []int         `json:"sessions,omitempty"` // observed sessions of the command
	Trees       []processTree `json:"families,omitempty"` // observed processes outside these sessions
	UserExec    bool          `json:"granted,omitempty"`  // see TrackUserExec
	Boot        string        `json:"boot"`               // boot ID; records of another boot are obsolete

	file string // empty: not written
}

// recordStore is the directory of the records. Commands may contain secrets, so only the owner may
// read the files.
type recordStore struct {
	dir       string
	boot      string
	startTime int64
	next      *atomic.Int64
}

const recordSuffix = ".json"

func newRecordStore(dir string) recordStore {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it all records count as of this boot
	return recordStore{
		dir:       dir,
		boot:      strings.TrimSpace(string(boot)),
		startTime: time.Now().UnixNano(),
		next:      &atomic.Int64{},
	}
}

// read returns the records of earlier runs of the agent in this boot, and removes obsolete ones.
func (d *recordStore) read() (all []record, err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		file := filepath.Join(d.dir, e.Name())
		if filepath.Ext(file) != recordSuffix {
			continue // not a record
		}
		text, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n := record{file: file}
		if json.Unmarshal(text, &n) != nil || n.Boot != d.boot || n.Container == "" {
			errs = append(errs, os.Remove(file)) // of another boot, or incomplete
			continue
		}
		all = append(all, n)
	}
	return all, errors.Join(errs...)
}

// write creates or replaces a record.
func (d *recordStore) write(n *record) error {
	n.Boot = d.boot
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	file := n.file
	if file == "" {
		file = filepath.Join(d.dir, fmt.Sprintf("%x-%x%s", d.startTime, d.next.Add(1), recordSuffix))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return errors.Join(err, ignoreMissing(os.Remove(file)))
		}
		n.file = file
		return nil
	}
	tmp := file + ".tmp"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(tmp)))
	}
	return os.Rename(tmp, file)
}

// remove deletes a record. If that fails, the next run of the agent cleans up after a command that
// no longer exists.
func (d *recordStore) remove(n record) {
	if n.file != "" {
		_ = os.Remove(n.file)
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
