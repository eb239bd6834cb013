package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	runDir   = "/run/berth-hosts"
	maxSlots = 200 // of 10.213.0.0/16
)

// record is the content of a slot's file: everything needed to remove the host without the process
// that created it.
type record struct {
	Number   int
	Owner    int // process ID, for information only: the lock decides
	Detached bool
	For      string // owner name of a detached host
	Version  Version
	Upgraded bool     // upgraded from another version
	Dir      string   // directory of the host
	OwnDir   bool     // Dir was created by this package
	Below    []string // further directories whose mounts belong to the host
	PodCIDR  netip.Prefix
	CNI      bool
	Handlers []string
	Disk     bool   // images and writable layers are on a disk of their own
	Sandbox  string // image of the sandboxes
	LAN      int    // number of the LAN that the host is connected to, from 1; 0: none
	Holder   int    // process that holds the mount namespace of a host on a LAN
}

// slot is a number that belongs to one host of this machine.
type slot struct {
	record
	lock      *os.File // nil for a detached host
	loggedIDs idSet
}

func (r *record) name() string         { return "berth-host-" + strconv.Itoa(r.Number) }
func (r *record) bridge() string       { return "bh" + strconv.Itoa(r.Number) }
func (r *record) network() string      { return r.name() }
func (r *record) run() string          { return slotDir(r.Number) }
func (r *record) socket() string       { return filepath.Join(r.run(), "c.sock") }
func (r *record) shimSockets() string  { return filepath.Join(r.run(), "s") }
func (r *record) state() string        { return filepath.Join(r.run(), "state") }
func (r *record) root() string         { return filepath.Join(r.Dir, "root") }
func (r *record) addresses() string    { return filepath.Join(r.Dir, "cni", "addresses") }
func (r *record) plugins() string      { return filepath.Join(r.Dir, "cni", "bin") }
func (r *record) confDir() string      { return filepath.Join(r.Dir, "cni", "net.d") }
func (r *record) gateway() netip.Addr  { return r.PodCIDR.Masked().Addr().Next() }
func (r *record) log() string          { return filepath.Join(r.Dir, "containerd.log") }
func (r *record) mountRoots() []string { return append([]string{r.run(), r.Dir}, r.Below...) }

func slotDir(n int) string  { return filepath.Join(runDir, strconv.Itoa(n)) }
func slotLock(n int) string { return slotDir(n) + ".lock" }
func slotFile(n int) string { return filepath.Join(slotDir(n), "host.json") }

// claim takes a free slot after removing the leaks of dead owners.
func claim() (s *slot, err error) {
	if err := Sweep(); err != nil {
		return nil, err
	}
	return s, withRunDir(func() error {
		for n := range maxSlots {
			if _, err := os.Stat(slotFile(n)); err == nil {
				continue
			}
			lock, err := tryLock(slotLock(n))
			if err != nil {
				return err
			}
			if lock == nil {
				continue
			}
			s = &slot{record: record{Number: n, Owner: os.Getpid()}, lock: lock}
			if !routeExists(s.podRange()) {
				if err = os.MkdirAll(s.run(), 0o711); err == nil {
					err = s.write()
				}
				return err
			}
			os.Remove(slotLock(n))
			lock.Close()
		}
		return fmt.Errorf("all %d slots of %s are taken", maxSlots, runDir)
	})
}

// Sweep removes the hosts whose owner died without stopping them.
func Sweep() error {
	left, err := records()
	if err != nil {
		return err
	}
	var errs error
	for _, r := range left {
		if r.Detached {
			continue
		}
		lock, err := tryLock(slotLock(r.Number))
		if errors.Is(err, os.ErrNotExist) {
			continue // another process removed the last host and runDir
		}
		if lock == nil {
			errs = errors.Join(errs, err)
			continue // the owner is alive
		}
		n := r.Number
		if r, err = readRecord(n); err != nil {
			os.Remove(slotLock(n))
			lock.Close()
			continue // another process removed it
		}
		h := &Host{slot: &slot{record: *r, lock: lock}}
		if err := h.teardown(); err != nil {
			errs = errors.Join(errs, fmt.Errorf("remove leaks of process %d on host %d: %w", r.Owner, r.Number,
				err))
		}
	}
	return errs
}

func (r *record) podRange() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, byte(r.Number), 0}), 24)
}

// routeExists reports whether the machine already has a route into the CIDR.
func routeExists(p netip.Prefix) bool {
	out, err := command("ip", "-4", "route", "show", "root", p.String())
	return err != nil || strings.TrimSpace(out) != ""
}

// write stores the record for the process that cleans up.
func (s *slot) write() error {
	text, err := json.MarshalIndent(&s.record, "", "  ")
	if err != nil {
		return err
	}
	tmp := slotFile(s.Number) + ".tmp"
	if err := os.WriteFile(tmp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, slotFile(s.Number))
}

// release frees the number. The slot's directory must be free of mounts. The last host also removes
// the rules that all hosts share.
func (s *slot) release() error {
	err := withRunDir(func() error {
		errs := os.RemoveAll(s.run())
		if left, err := records(); err == nil && len(left) == 0 {
			errs = errors.Join(errs, removeSharedChains(), removeEmptyChains(), removeSharedCgroups())
		}
		os.Remove(slotLock(s.Number))
		os.Remove(runDir) // fails unless this was the last one
		return errs
	})
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

func readRecord(n int) (*record, error) {
	text, err := os.ReadFile(slotFile(n))
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", slotFile(n), err)
	}
	return &r, nil
}

// records lists the slots that have a record.
func records() ([]*record, error) {
	files, err := filepath.Glob(filepath.Join(runDir, "*", "host.json"))
	if err != nil {
		return nil, err
	}
	var out []*record
	for _, f := range files {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			continue
		}
		if r, err := readRecord(n); err == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// tryLock returns nil without an error when another process holds the lock.
func tryLock(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
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

// withRunDir holds the lock of all slots while it calls do. The lock is on the directory itself,
// which leaves no lock file behind. Only do may remove the directory.
func withRunDir(do func() error) error {
	for {
		if err := os.MkdirAll(runDir, 0o711); err != nil {
			return err
		}
		d, err := os.Open(runDir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		defer d.Close()
		if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
			return fmt.Errorf("lock %s: %w", runDir, err)
		}
		locked, err1 := d.Stat()
		current, err2 := os.Stat(runDir)
		if err1 == nil && err2 == nil && os.SameFile(locked, current) {
			return do()
		}
	}
}

// withLock holds a machine-wide lock file of this package while it calls do.
func withLock(name string, do func() error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	return do()
}
