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

// note is what is kept of a command under way.
type note struct {
	Container string        `json:"container"`
	Command   []string      `json:"command"`
	Began     time.Duration `json:"began"`              // when it was asked for, since boot
	Sessions  []int         `json:"sessions,omitempty"` // of its processes, as far as it was seen
	Families  []family      `json:"families,omitempty"` // what has left those sessions, as far as it was seen
	Granted   bool          `json:"granted,omitempty"`  // a user's, see Granted
	Boot      string        `json:"boot"`               // a note of another boot tells of nothing

	file string // empty: it was not written
}

// notes is the directory of them. Commands may hold secrets: its files are the
// owner's alone.
type notes struct {
	dir  string
	boot string
	life int64
	next *atomic.Int64
}

const noteSuffix = ".json"

func newNotes(dir string) notes {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without one all notes are of one boot
	return notes{dir: dir, boot: strings.TrimSpace(string(boot)), life: time.Now().UnixNano(), next: &atomic.Int64{}}
}

// read returns the notes of earlier lives in this boot, and removes those that
// tell of nothing any more.
func (d *notes) read() (all []note, err error) {
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
		if filepath.Ext(file) != noteSuffix {
			continue // not one of these
		}
		text, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n := note{file: file}
		if json.Unmarshal(text, &n) != nil || n.Boot != d.boot || n.Container == "" {
			errs = append(errs, os.Remove(file)) // of another boot, or never written whole
			continue
		}
		all = append(all, n)
	}
	return all, errors.Join(errs...)
}

// write keeps a note, anew if it has been.
func (d *notes) write(n *note) error {
	n.Boot = d.boot
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	file := n.file
	if file == "" {
		file = filepath.Join(d.dir, fmt.Sprintf("%x-%x%s", d.life, d.next.Add(1), noteSuffix))
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

// remove forgets a command. A note that cannot be removed is one too many: the
// next life looks after a command that is no more.
func (d *notes) remove(n note) {
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
