package crilog

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Rotation configures the rotation of a log.
type Rotation struct {
	MaxSize  int64 // bytes; a log of at least this size is rotated
	MaxFiles int   // including the current file, at least 2
	// CompressDelay is how long a rotated file must be unchanged before it is compressed: a runtime
	// under load may still write to it.
	CompressDelay time.Duration
	Now           time.Time
	Reopen        func() error // makes the runtime reopen its file at the old path
}

// Rotate renames a log that has reached its maximum size, compresses the files that were rotated
// before, except the newest one, which the runtime or a follower may still have open, and deletes
// the oldest ones. It reports whether it renamed the log, also together with an error of a later
// step. If the runtime does not reopen its file, the log is renamed back.
func Rotate(path string, r Rotation) (bool, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) { // renamed by an interrupted rotation
		if err := r.Reopen(); err != nil {
			return false, fmt.Errorf("reopen log %s: %w", path, err)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if err := removeTempFiles(path); err != nil {
		return false, err
	}
	old, err := rotatedFiles(path)
	if err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if st.Size() < r.MaxSize { // compress what an earlier rotation deferred
		return false, r.compress(path, old[:max(len(old)-1, 0)])
	}
	to := path + "." + r.nextSuffix(path, old)
	// Delete first: a full disk must not keep old logs.
	if old, err = trimOldest(old, r.MaxFiles-2); err != nil {
		return false, err
	}
	if err := os.Rename(path, to); err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if err := r.Reopen(); err != nil {
		return false, errors.Join(fmt.Errorf("reopen log %s: %w", path, err), moveBack(to, path))
	}
	return true, r.compress(path, old)
}

// nextSuffix returns the suffix of the next rotated file. The order has priority over the time: if
// the last rotation was less than a second ago, or the clock was set back, the suffix is a second
// after the last one.
func (r Rotation) nextSuffix(path string, old []rotatedFile) string {
	stamp := r.Now.Format(rotationTimeFormat)
	if len(old) == 0 {
		return stamp
	}
	newest := strings.TrimPrefix(old[len(old)-1].path, path+".")
	at, err := time.Parse(rotationTimeFormat, newest)
	if err != nil || newest < stamp { // rotatedFiles returns only names that parse
		return stamp
	}
	return at.Add(time.Second).Format(rotationTimeFormat)
}

// trimOldest deletes the oldest files until only keep are left.
func trimOldest(old []rotatedFile, keep int) ([]rotatedFile, error) {
	for len(old) > max(keep, 0) {
		if err := remove(old[0]); err != nil {
			return old, err
		}
		old = old[1:]
	}
	return old, nil
}

// compress compresses the uncompressed files, unless the log has reached its maximum size again:
// then rotating it is more urgent.
func (r Rotation) compress(path string, old []rotatedFile) error {
	behind := func() bool {
		st, err := os.Stat(path)
		return err == nil && st.Size() >= r.MaxSize
	}
	for _, o := range old {
		if o.compressed {
			continue
		}
		if behind() {
			return nil
		}
		if !o.isQuiet(r.CompressDelay) {
			continue
		}
		if err := compress(o, behind); errors.Is(err, errLogGrown) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// moveBack renames the log back, unless the runtime has created a new file after all.
func moveBack(from, to string) error {
	if err := os.Link(from, to); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("rename log back: %w", err)
	}
	if err := os.Remove(from); err != nil {
		return fmt.Errorf("rename log back: %w", err)
	}
	return nil
}

// removeTempFiles removes the files of an interrupted compression.
func removeTempFiles(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), tempSuffix) {
			if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("rotate log: %w", err)
			}
		}
	}
	return nil
}

func remove(o rotatedFile) error {
	for _, file := range []string{o.path, o.path + zipSuffix} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove rotated log: %w", err)
		}
	}
	return nil
}

// isQuiet reports whether a file has been unchanged for the duration.
func (r rotatedFile) isQuiet(long time.Duration) bool {
	st, err := os.Stat(r.name())
	if err != nil {
		return false
	}
	age := time.Since(st.ModTime())
	return age < 0 || age >= long // negative: the clock was set back
}

// errLogGrown means that rotating the log is more urgent.
var errLogGrown = errors.New("the log has reached its maximum size again")

// compressStep is the number of bytes to compress between two checks of the log.
const compressStep = 1 << 20

// compress replaces a rotated file by a compressed one.
func compress(o rotatedFile, behind func() bool) error {
	a := &compressedFile{of: o}
	defer a.discard()
	in, err := o.open()
	if err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	defer in.Close()
	var size int64
	for err == nil {
		if behind() {
			return errLogGrown
		}
		var n int64
		n, err = io.CopyN(a, in, compressStep)
		size += n
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	if st, err := os.Stat(o.path); err != nil || st.Size() != size { // written meanwhile
		return errLogGrown
	}
	if err := a.finish(); err != nil {
		return err
	}
	return a.commit()
}

// compressedFile is the compressed replacement of a rotated file. It appears atomically and has the
// modification time of the last line.
type compressedFile struct {
	of   rotatedFile
	mod  time.Time
	temp *os.File // nil: nothing has been written
	zip  *gzip.Writer
}

func (a *compressedFile) tempName() string { return a.of.path + tempSuffix }

// Write creates the file on first use.
func (a *compressedFile) Write(b []byte) (int, error) {
	if a.temp == nil {
		if err := a.open(); err != nil {
			return 0, err
		}
	}
	return a.zip.Write(b)
}

func (a *compressedFile) open() error {
	st, err := os.Stat(a.of.name())
	if err != nil {
		return err
	}
	a.mod = st.ModTime()
	if a.temp, err = os.OpenFile(a.tempName(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, st.Mode().Perm()); err != nil {
		return err
	}
	a.zip = gzip.NewWriter(a.temp)
	return nil
}

// finish syncs the file to the disk.
func (a *compressedFile) finish() error {
	var err error
	if a.temp == nil {
		err = a.open()
	}
	if err == nil {
		err = errors.Join(a.zip.Close(), a.temp.Sync(), os.Chtimes(a.tempName(), a.mod, a.mod))
	}
	if err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	return nil
}

// commit replaces the rotated file by the finished file.
func (a *compressedFile) commit() error {
	if err := os.Rename(a.tempName(), a.of.path+zipSuffix); err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	if err := os.Remove(a.of.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	return nil
}

// discard removes the file if it was not committed.
func (a *compressedFile) discard() {
	if a.temp == nil {
		return
	}
	_ = a.temp.Close()
	_ = os.Remove(a.tempName()) // it does not exist after the rename
}

// RemoveRotated deletes all rotated files of a log, for a node under disk pressure. The current
// file is kept.
func RemoveRotated(path string) error {
	old, err := rotatedFiles(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, o := range old {
		err = errors.Join(err, remove(o))
	}
	return err
}
