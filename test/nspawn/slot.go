package nspawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	runDir   = "/run/berth-nspawn"
	maxSlots = 64
)

// record is the content of a slot's file: everything needed to remove the host without the process
// that created it.
type record struct {
	Number int
	Owner  int    // process ID, for information only: the lock decides
	Dir    string // directory of the host: overlay, console log, containerd's directory
	Cgroup string // path in the v2 hierarchy
}

func (r *record) name() string       { return "berth-nspawn-" + strconv.Itoa(r.Number) }
func (r *record) netns() string      { return filepath.Join("/run/netns", r.name()) }
func (r *record) root() string       { return filepath.Join(r.Dir, "root") }
func (r *record) containerd() string { return filepath.Join(r.Dir, "containerd") }
func (r *record) propagate() string  { return filepath.Join("/run/systemd/nspawn/propagate", r.name()) }
func (r *record) console() string    { return filepath.Join(r.Dir, "console") }

func slotLock(n int) string { return filepath.Join(runDir, strconv.Itoa(n)+".lock") }
func slotFile(n int) string { return filepath.Join(runDir, strconv.Itoa(n)+".json") }

// claim takes a free slot after removing the hosts of dead owners.
func claim() (*record, *os.File, error) {
	if err := Sweep(); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(runDir, 0o711); err != nil {
		return nil, nil, err
	}
	for n := range maxSlots {
		lock, err := tryLock(slotLock(n))
		if err != nil {
			return nil, nil, err
		}
		if lock == nil {
			continue
		}
		if _, err := os.Stat(slotFile(n)); err == nil { // the owner just died: the next Sweep removes its host
			lock.Close()
			continue
		}
		r := &record{Number: n, Owner: os.Getpid()}
		v2, _, err := hierarchies()
		if err == nil && v2 == "" {
			err = errors.New("this machine has no cgroup v2 hierarchy, which systemd in a container needs")
		}
		if err != nil {
			return nil, nil, errors.Join(err, release(r, lock))
		}
		r.Cgroup = filepath.Join(v2, r.name())
		return r, lock, nil
	}
	return nil, nil, fmt.Errorf("all %d slots of %s are taken", maxSlots, runDir)
}

func (r *record) write() error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(slotFile(r.Number), text, 0o600)
}

// release frees the number after the host has been removed.
func release(r *record, lock *os.File) error {
	err := os.Remove(slotFile(r.Number))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	os.Remove(slotLock(r.Number)) // while the lock is held: no other process can hold it yet
	os.Remove(runDir)             // stays unless this was the last one
	return errors.Join(err, lock.Close())
}

// Sweep removes the hosts whose owner died without stopping them.
func Sweep() error {
	files, _ := filepath.Glob(filepath.Join(runDir, "*.json"))
	var errs error
	for _, f := range files {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(f), ".json"))
		if err != nil {
			continue
		}
		lock, err := tryLock(slotLock(n))
		if lock == nil {
			errs = errors.Join(errs, err)
			continue // the owner is alive
		}
		text, err := os.ReadFile(f)
		r := &record{}
		if err == nil {
			err = json.Unmarshal(text, r)
		}
		if errors.Is(err, os.ErrNotExist) {
			lock.Close()
			continue // another process removed it
		}
		if err == nil {
			err = r.teardown()
		}
		if err != nil {
			err = fmt.Errorf("remove leaks of process %d on host %d: %w", r.Owner, n, err)
			errs = errors.Join(errs, err, lock.Close())
			continue
		}
		errs = errors.Join(errs, release(r, lock))
	}
	return errs
}

// tryLock returns nil without an error when another process holds the lock.
func tryLock(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) { // the last release just removed the directory
			if err = os.MkdirAll(runDir, 0o711); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, nil
			}
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		// The last holder may have removed the file between open and lock.
		locked, err1 := f.Stat()
		current, err2 := os.Stat(name)
		if err1 == nil && err2 == nil && os.SameFile(locked, current) {
			return f, nil
		}
		f.Close()
	}
}

// hierarchies returns the mount points of all cgroup hierarchies of this machine. v2 is empty if
// there is no v2 hierarchy.
func hierarchies() (v2 string, all []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(string(text)) {
		mount, kind, ok := strings.Cut(line, " - ")
		if !ok || !strings.HasPrefix(kind, "cgroup") {
			continue
		}
		at := strings.Fields(mount)[4]
		all = append(all, at)
		if v2 == "" && strings.HasPrefix(kind, "cgroup2 ") {
			v2 = at
		}
	}
	return v2, all, nil
}

// cgroups returns the paths of the host's cgroup in all hierarchies: if systemd's own hierarchy is
// v1, systemd-nspawn creates the same cgroup there.
func (r *record) cgroups() ([]string, error) {
	_, all, err := hierarchies()
	for i := range all {
		all[i] = filepath.Join(all[i], r.name())
	}
	return all, err
}
