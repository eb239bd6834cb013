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

// Rotation says how logs are rotated.
type Rotation struct {
	MaxSize  int64 // bytes from which a log is rotated
	MaxFiles int   // of one log with the current one, at least 2
	Now      time.Time
	Reopen   func() error // lets the runtime open its file again, at the old path
}

// Rotate moves a log that has grown to its size out of the way, compresses those
// moved before, except for the newest, which the runtime or a follower may still
// have open, and deletes the oldest. It reports whether it moved the log. When
// the runtime does not open its file again, the log moves back.
func Rotate(path string, r Rotation) (bool, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) { // moved away by a rotation that was cut short
		if err := r.Reopen(); err != nil {
			return false, fmt.Errorf("reopen log %s: %w", path, err)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if err := sweep(path); err != nil {
		return false, err
	}
	if st.Size() < r.MaxSize {
		return false, nil
	}
	old, err := chain(path)
	if err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	to := path + "." + r.Now.Format(stampSuffix)
	if n := len(old); n > 0 && old[n-1].path >= to {
		return false, nil // less than a second ago, or the clock was set back: order comes first
	}
	// Room is made first: a full disk must not keep old logs alive.
	keep := max(r.MaxFiles-2, 0)
	for len(old) > keep {
		if err := remove(old[0]); err != nil {
			return false, err
		}
		old = old[1:]
	}
	for _, o := range old {
		if err := compress(o); err != nil {
			return false, err
		}
	}
	if err := os.Rename(path, to); err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if err := r.Reopen(); err != nil {
		return false, errors.Join(fmt.Errorf("reopen log %s: %w", path, err), moveBack(to, path))
	}
	return true, nil
}

// moveBack gives the log its name again, unless the runtime has made a new file
// there after all.
func moveBack(from, to string) error {
	if err := os.Link(from, to); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("move log back: %w", err)
	}
	if err := os.Remove(from); err != nil {
		return fmt.Errorf("move log back: %w", err)
	}
	return nil
}

// sweep removes what an interrupted compression left.
func sweep(path string) error {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".") && strings.HasSuffix(e.Name(), tempSuffix) {
			if err := os.Remove(filepath.Join(filepath.Dir(path), e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("rotate log: %w", err)
			}
		}
	}
	return nil
}

func remove(o rotated) error {
	for _, file := range []string{o.path, o.path + zipSuffix} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove rotated log: %w", err)
		}
	}
	return nil
}

// compress replaces a rotated log by a compressed one, which appears complete
// and keeps the time of the last line.
func compress(o rotated) (err error) {
	if o.zip {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("compress rotated log: %w", err)
		}
	}()
	in, err := os.Open(o.path)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	temp := o.path + tempSuffix
	out, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, st.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp) }() // after the rename there is none
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := os.Chtimes(temp, st.ModTime(), st.ModTime()); err != nil {
		return err
	}
	if err := os.Rename(temp, o.path+zipSuffix); err != nil {
		return err
	}
	return os.Remove(o.path)
}
