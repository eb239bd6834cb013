package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/strictyaml"
)

// fileState is the state of one file.
type fileState struct {
	path         string
	due          time.Time // when to read it; zero: never
	closed       bool      // closed by its writer, no need to wait
	read         lastRead
	good         *DesiredState // last valid version; nil: none
	errors       []FileError   // of the newest version
	badSince     time.Time     // when the newest version was first invalid
	suspectSince time.Time     // since when the newest version is missing, empty or invalid, unconfirmed
}

// lastRead identifies the version of a file that was read last.
type lastRead struct {
	known  bool // stat and sum describe the newest version
	stat   stamp
	sum    [sha256.Size]byte
	hasSum bool // sum is set
}

// stamp changes whenever the content of a file may have changed.
type stamp struct {
	dev, ino, size uint64
	mtime, ctime   unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp {
	return stamp{dev: st.Dev, ino: st.Ino, size: uint64(st.Size), mtime: st.Mtim, ctime: st.Ctim}
}

func (r lastRead) stale(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) != nil || stampOf(&st) != r.stat
}

// readDue reads the files that are due and returns when the next one is, or zero.
func (f *Directory) readDue() time.Time {
	var next time.Time
	now := f.opt.Now()
	for path, s := range f.files {
		if !s.due.IsZero() && !s.due.After(now) {
			s.due = time.Time{}
			f.readFile(s, now)
			if s.removable() {
				delete(f.files, path)
				continue
			}
		}
		if !s.due.IsZero() && (next.IsZero() || s.due.Before(next)) {
			next = s.due
		}
	}
	return next
}

// removable reports whether the state can be dropped.
func (s *fileState) removable() bool {
	return s.due.IsZero() && !s.read.known && s.good == nil && s.errors == nil
}

// version is one content of a file.
type version struct {
	data  []byte
	stat  stamp
	mtime time.Time
}

// readFile reads and validates a file, or postpones that.
func (f *Directory) readFile(s *fileState, now time.Time) {
	v, err := readVersion(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if (s.good != nil || s.errors != nil) && f.needsConfirmation(s, now) {
			return
		}
		f.forget(s)
		return
	case err != nil:
		f.recordErrors(s, strictyaml.Errors{{Message: errorText(err)}}, now)
		return
	}
	if age := now.Sub(v.mtime); !s.closed && age >= 0 && age < settleDelay {
		s.due = now.Add(settleDelay - age)
		return
	}
	sum := sha256.Sum256(v.data)
	if s.read.hasSum && sum == s.read.sum {
		s.read.known, s.read.stat, s.suspectSince = true, v.stat, time.Time{}
		return
	}
	w, err := Validate(
		Input{Path: s.path, Data: v.data, Modified: v.mtime, Now: now, PreviousPod: f.opt.PreviousPod},
		f.id,
		s.good,
	)
	if suspect := err != nil || s.good != nil && w.isEmpty(); suspect &&
		f.needsConfirmation(s, now) {
		return
	}
	s.read = lastRead{known: true, stat: v.stat, sum: sum, hasSum: true}
	if err != nil {
		f.recordErrors(s, asErrors(err), now)
		return
	}
	s.good, s.errors, s.badSince, s.suspectSince = w, nil, time.Time{}, time.Time{}
	f.changed = true
	for _, warning := range w.Warnings {
		f.warn(warning)
	}
}

// warn logs a warning about a valid version of a file, once per version.
func (f *Directory) warn(w Warning) {
	attrs := []any{"file", w.File}
	if w.Line > 0 {
		attrs = append(attrs, "line", w.Line)
	}
	if w.Pod.Name != "" {
		attrs = append(attrs, "pod", w.Pod.String())
	}
	f.opt.Log.Warn("manifest warning", append(attrs, "message", w.Message)...)
}

// needsConfirmation reports whether a missing, empty or invalid version has to be read again after
// a delay, and schedules that. A change in progress looks like that.
func (f *Directory) needsConfirmation(s *fileState, now time.Time) bool {
	if s.suspectSince.IsZero() {
		s.suspectSince = now
	}
	if age := now.Sub(s.suspectSince); age >= 0 && age < f.opt.confirmDelay {
		s.due, s.closed = s.suspectSince.Add(f.opt.confirmDelay), true
		return true
	}
	s.suspectSince = time.Time{}
	return false
}

func (f *Directory) forget(s *fileState) {
	if s.good != nil || s.errors != nil {
		f.changed = true
	}
	*s = fileState{path: s.path}
}

// recordErrors records why the newest version of a file is invalid. The last good version stays.
func (f *Directory) recordErrors(s *fileState, errs strictyaml.Errors, now time.Time) {
	if s.badSince.IsZero() {
		s.badSince = now
	}
	s.suspectSince = time.Time{}
	bad := make([]FileError, len(errs))
	for i, e := range errs {
		bad[i] = FileError{
			Path:         s.path,
			Line:         e.Line,
			Field:        e.Field,
			Message:      e.Message,
			Since:        s.badSince,
			LastGoodKept: s.good != nil && !s.good.isEmpty(),
		}
	}
	if equal(bad, s.errors) {
		return
	}
	s.errors, f.changed = bad, true
	f.opt.Log.Error("manifest file invalid", "file", s.path, "err", errs, "lastGoodVersionKept", s.good != nil)
}

func equal(a, b []FileError) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// readVersion reads a file of at most MaxFileSize bytes. It never blocks on a pipe or device.
func readVersion(path string) (version, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return version{}, err
	}
	defer file.Close() // read only
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return version{}, fmt.Errorf("stat: %w", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR: // handled like a missing file
		return version{}, fs.ErrNotExist
	default:
		return version{}, errors.New("not a regular file")
	}
	if st.Size > MaxFileSize {
		return version{}, fmt.Errorf("%d bytes, more than the limit of %d for a manifest", st.Size, MaxFileSize)
	}
	data, err := io.ReadAll(io.LimitReader(file, MaxFileSize+1))
	if err != nil {
		return version{}, err
	}
	if len(data) > MaxFileSize {
		return version{}, fmt.Errorf("more than %d bytes", MaxFileSize)
	}
	return version{data: data, stat: stampOf(&st), mtime: time.Unix(st.Mtim.Unix())}, nil
}
