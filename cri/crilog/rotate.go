package crilog

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Rotation says how logs are rotated.
type Rotation struct {
	MaxSize  int64 // bytes from which a log is rotated
	MaxFiles int   // of one log with the current one, at least 2
	// PerMinute is how many bytes of one minute rotated files keep, the newest one
	// aside; 0: all.
	PerMinute int64
	// CompressDelay is how long a rotated file must have been left alone to be compressed:
	// a runtime under load may have lines for it yet.
	CompressDelay time.Duration
	Now           time.Time
	Reopen        func() error // lets the runtime open its file again, at the old path
	Dropped       func(Loss)   // told what the limit has cost; nil: nobody is
}

// Rotate moves a log that has grown to its size out of the way, compresses those
// moved before, except for the newest, which the runtime or a follower may still
// have open, and deletes the oldest. It reports whether it moved the log, also
// beside an error: then what came after that has failed. When the runtime does
// not open its file again, the log moves back.
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
	old, err := chain(path)
	if err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if st.Size() < r.MaxSize { // there is time for what was put off
		return false, r.compress(path, old[:max(len(old)-1, 0)])
	}
	to := path + "." + r.stamp(path, old)
	if r.PerMinute == 0 { // room is made first: a full disk must not keep old logs alive
		if old, err = room(old, r.MaxFiles-2); err != nil {
			return false, err
		}
	}
	if err := os.Rename(path, to); err != nil {
		return false, fmt.Errorf("rotate log: %w", err)
	}
	if err := r.Reopen(); err != nil {
		return false, errors.Join(fmt.Errorf("reopen log %s: %w", path, err), moveBack(to, path))
	}
	// The log that is written now is small again; the rest has time.
	var thinned error
	if r.PerMinute > 0 { // what is over the limit goes before what is older goes for it
		thinned = r.thin(path, old, rotated{path: to})
		if old, err = chain(path); err == nil {
			old = slices.DeleteFunc(old, func(o rotated) bool { return o.path >= to })
			old, err = room(old, r.MaxFiles-2)
		}
	}
	return true, errors.Join(thinned, err, r.compress(path, old))
}

// stamp is the end of the name of the next rotated file. Order comes first: when
// the last rotation was less than a second ago, or the clock was set back, it is
// a second after the last one.
func (r Rotation) stamp(path string, old []rotated) string {
	stamp := r.Now.Format(stampSuffix)
	if len(old) == 0 {
		return stamp
	}
	newest := strings.TrimPrefix(old[len(old)-1].path, path+".")
	at, err := time.Parse(stampSuffix, newest)
	if err != nil || newest < stamp { // chain lists no name that cannot be read
		return stamp
	}
	return at.Add(time.Second).Format(stampSuffix)
}

// room deletes the oldest files until only so many are left.
func room(old []rotated, keep int) ([]rotated, error) {
	for len(old) > max(keep, 0) {
		if err := remove(old[0]); err != nil {
			return old, err
		}
		old = old[1:]
	}
	return old, nil
}

// compress compresses what is not yet, unless the log has grown to its size
// again meanwhile: then that is more urgent.
func (r Rotation) compress(path string, old []rotated) error {
	behind := func() bool {
		st, err := os.Stat(path)
		return err == nil && st.Size() >= r.MaxSize
	}
	for _, o := range old {
		if o.zip {
			continue
		}
		if behind() {
			return nil
		}
		if !o.quiet(r.CompressDelay) {
			continue
		}
		if err := compress(o, behind); errors.Is(err, errBehind) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
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

// quiet reports whether nobody has written to a file for a while.
func (r rotated) quiet(long time.Duration) bool {
	st, err := os.Stat(r.file())
	if err != nil {
		return false
	}
	age := time.Since(st.ModTime())
	return age < 0 || age >= long // less than 0: the clock was set back
}

// errBehind says that there is something more urgent.
var errBehind = errors.New("the log has grown meanwhile")

// compressStep is how much is compressed between two looks at the log.
const compressStep = 1 << 20

// compress replaces a rotated log by a compressed one.
func compress(o rotated, behind func() bool) error {
	a := &archive{of: o}
	defer a.discard()
	in, err := o.open()
	if err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	defer in.Close()
	var size int64
	for err == nil {
		if behind() {
			return errBehind
		}
		var n int64
		n, err = io.CopyN(a, in, compressStep)
		size += n
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	if st, err := os.Stat(o.path); err != nil || st.Size() != size { // written to meanwhile
		return errBehind
	}
	if err := a.finish(); err != nil {
		return err
	}
	return a.commit()
}

// archive is the compressed file that takes the place of a rotated one. It
// appears complete and keeps the time of the last line.
type archive struct {
	of   rotated
	mod  time.Time
	temp *os.File // nil: nothing has been written
	zip  *gzip.Writer
}

func (a *archive) tempName() string { return a.of.path + tempSuffix }

// Write makes the file when it is needed.
func (a *archive) Write(b []byte) (int, error) {
	if a.temp == nil {
		if err := a.open(); err != nil {
			return 0, err
		}
	}
	return a.zip.Write(b)
}

func (a *archive) open() error {
	st, err := os.Stat(a.of.file())
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

// finish has all that was written on the disk.
func (a *archive) finish() error {
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

// commit puts the finished file in the place of the rotated one.
func (a *archive) commit() error {
	if err := os.Rename(a.tempName(), a.of.path+zipSuffix); err != nil {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	if err := os.Remove(a.of.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("compress rotated log: %w", err)
	}
	return nil
}

// discard removes what was not committed.
func (a *archive) discard() {
	if a.temp == nil {
		return
	}
	_ = a.temp.Close()
	_ = os.Remove(a.tempName()) // after the rename there is none
}

// RemoveRotated deletes all rotated files of a log, for a node that is short of
// disk. The current one stays.
func RemoveRotated(path string) error {
	old, err := chain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, o := range old {
		err = errors.Join(err, remove(o))
	}
	return err
}
