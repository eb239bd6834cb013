package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rotatedTimeFormat is the time in the names of rotated files, audit-TIME.log. The names are those of
// kube-apiserver.
const rotatedTimeFormat = "2006-01-02T15-04-05.000"

// minFreeBytes is the free space of the file system below which no events are written. The store rejects
// writes below 64 MiB, and needs the rest for deletes, which free space.
const minFreeBytes = 48 << 20

// rotatingFile is a log file that is renamed when it is full. It removes rotated files in the same step,
// so that all files together never exceed their limits. The library that kube-apiserver uses removes them
// later, in a goroutine that never ends. It is safe for concurrent use.
type rotatingFile struct {
	path       string
	maxSize    int64 // 0: unlimited
	maxBackups int   // 0: unlimited
	maxAge     time.Duration
	now        func() time.Time
	free       func(*os.File) (int64, error) // free bytes of the file system

	mu   sync.Mutex
	file *os.File // nil: closed, or the last rotation failed
	size int64
}

// openRotatingFile opens or creates a log file with mode 0600, and removes rotated files beyond the limits.
func openRotatingFile(o LogOptions, path string, now func() time.Time) (*rotatingFile, error) {
	r := &rotatingFile{path: path, maxSize: int64(o.MaxSize) << 20, maxBackups: o.MaxBackups,
		maxAge: time.Duration(o.MaxAge) * 24 * time.Hour, now: now, free: freeBytes}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	return r, r.removeOld()
}

// open opens the current file.
func (r *rotatingFile) open() error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.file, r.size = f, info.Size()
	return nil
}

// Write appends one event.
func (r *rotatingFile) Write(event []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(len(event))
	if r.maxSize > 0 && n > r.maxSize {
		return 0, fmt.Errorf("event of %d bytes does not fit into a file of %d bytes", n, r.maxSize)
	}
	if r.file == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	if free, err := r.free(r.file); err != nil || free < minFreeBytes {
		return 0, errors.Join(err, fmt.Errorf("%d bytes free on the file system, at least %d are required", free,
			minFreeBytes))
	}
	if r.maxSize > 0 && r.size > 0 && r.size+n > r.maxSize {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	written, err := r.file.Write(event)
	if err != nil && r.file.Truncate(r.size) == nil {
		return 0, err // no partial line
	}
	r.size += int64(written)
	return written, err
}

// freeBytes returns the free space of the file system of a file.
func freeBytes(f *os.File) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, fmt.Errorf("free space: %w", err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil // no file system is larger
}

// rotate renames the current file and opens a new one.
func (r *rotatingFile) rotate() error {
	err := r.file.Close()
	r.file = nil
	if err != nil {
		return err
	}
	if err := os.Rename(r.path, r.freeName()); err != nil {
		return err
	}
	if err := r.removeOld(); err != nil {
		return err
	}
	return r.open()
}

// freeName returns the name for the current file when it is rotated. Two rotations in a millisecond must
// not replace a file.
func (r *rotatingFile) freeName() string {
	prefix, suffix := r.nameParts()
	for at := r.now().UTC(); ; at = at.Add(time.Millisecond) {
		name := filepath.Join(filepath.Dir(r.path), prefix+at.Format(rotatedTimeFormat)+suffix)
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return name
		}
	}
}

// nameParts returns what is before and after the time in the name of a rotated file.
func (r *rotatingFile) nameParts() (prefix, suffix string) {
	base, suffix := filepath.Base(r.path), filepath.Ext(r.path)
	return strings.TrimSuffix(base, suffix) + "-", suffix
}

// removeOld removes the rotated files that exceed the limits of age and number.
func (r *rotatingFile) removeOld() error {
	if r.maxBackups == 0 && r.maxAge == 0 {
		return nil
	}
	dir := filepath.Dir(r.path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	prefix, suffix := r.nameParts()
	type rotated struct {
		name string
		at   time.Time
	}
	var files []rotated
	for _, e := range entries {
		middle, isLog := strings.CutPrefix(e.Name(), prefix)
		middle, hasSuffix := strings.CutSuffix(middle, suffix)
		at, err := time.Parse(rotatedTimeFormat, middle)
		if isLog && hasSuffix && err == nil {
			files = append(files, rotated{e.Name(), at})
		}
	}
	slices.SortFunc(files, func(a, b rotated) int { return b.at.Compare(a.at) }) // newest first
	var errs []error
	for i, f := range files {
		tooMany := r.maxBackups > 0 && i >= r.maxBackups
		tooOld := r.maxAge > 0 && r.now().Sub(f.at) > r.maxAge
		if tooMany || tooOld {
			errs = append(errs, os.Remove(filepath.Join(dir, f.name)))
		}
	}
	return errors.Join(errs...)
}

// Close closes the current file.
func (r *rotatingFile) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
