package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Version is the format that this release writes.
const Version = 1

// ErrLocked reports that another agent has the store open.
var ErrLocked = errors.New("another berth is running with this state directory")

var (
	bucketBerth  = []byte("berth")
	bucketPods   = []byte("pods")
	bucketNode   = []byte("node") // created with the first value
	keyApp       = []byte("app")
	keyVersion   = []byte("version")
	keyCleanExit = []byte("left") // time of the last clean exit
)

// Options configures Open. Path is required.
type Options struct {
	Path             string        // of the file; its directory is created if absent, and locked
	Log              *slog.Logger  // nil: discard; content of the store is never logged
	PreallocateBytes int64         // disk space allocated in advance; default 4 MiB, negative: none
	CommitDelay      time.Duration // how long Put waits to batch changes; default 200 ms
	RetryInterval    time.Duration // between attempts while degraded; default 5 s

	HistoryDelay time.Duration // how long PutHistory waits to batch changes; default 1 s

	// Heartbeat is called by Run at least every few seconds while it makes progress. It may be nil.
	Heartbeat func()
}

// Quarantined describes a store that could not be used and was renamed.
type Quarantined struct {
	Path   string // new path
	Reason string // one sentence
}

func (s Quarantined) String() string { return s.Reason + ", renamed to " + s.Path }

// Open opens or creates the store. A file at Path that is damaged, foreign, unreadable, of a newer
// version or not a regular file is renamed and replaced by an empty store. The second result then
// describes it. If that is not possible, or the disk is full or read-only, the store starts in
// memory (see Degraded). The only error is ErrLocked.
func Open(o Options) (*Store, *Quarantined, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.PreallocateBytes == 0 {
		o.PreallocateBytes = 4 << 20
	}
	if o.CommitDelay == 0 {
		o.CommitDelay = 200 * time.Millisecond
	}
	if o.RetryInterval == 0 {
		o.RetryInterval = 5 * time.Second
	}
	if o.HistoryDelay == 0 {
		o.HistoryDelay = time.Second
	}
	if o.Heartbeat == nil {
		o.Heartbeat = func() {}
	}
	s := newStore(o)
	st, statErr := os.Lstat(o.Path)
	f, quarantined, err := openFile(o)
	switch {
	case err == nil:
		s.file = f
		if statErr == nil && quarantined == nil {
			s.previous = readPreviousRun(f.db, st.ModTime())
		}
	case errors.Is(err, ErrLocked):
		return nil, nil, fmt.Errorf("open store %s: %w", o.Path, err)
	default: // the agent works without the file; Run tries again
		s.degradedReason = err.Error()
		o.Log.Warn("local store is in memory only", "path", o.Path, "err", err)
	}
	return s, quarantined, nil
}

// file is an open store file with the lock on its directory.
type file struct {
	dir *os.File // holds the lock
	db  *bbolt.DB
}

func (f *file) close() error {
	err := f.db.Close()
	return errors.Join(err, f.dir.Close())
}

// isTransient reports whether the cause may disappear without intervention.
func isTransient(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EROFS, unix.EIO, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func openFile(o Options) (*file, *Quarantined, error) {
	dir := filepath.Dir(o.Path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	f, quarantined, err := openLocked(o, d)
	if err != nil {
		return nil, quarantined, errors.Join(err, d.Close())
	}
	return f, quarantined, nil
}

// openLocked takes the lock before it reads the file. A file that another agent writes must be
// neither checked nor renamed.
func openLocked(o Options, dir *os.File) (*file, *Quarantined, error) {
	if err := lock(dir); err != nil {
		return nil, nil, err
	}
	var quarantined *Quarantined
	db, err := openDB(o)
	if unusable, ok := unusableOf(err); ok {
		if quarantined, err = quarantine(o.Path, unusable, time.Now()); err != nil {
			return nil, nil, err
		}
		if err := dir.Sync(); err != nil {
			return nil, quarantined, err
		}
		db, err = openDB(o)
	}
	if err != nil {
		return nil, quarantined, err
	}
	if err := reserve(o.Path, o.PreallocateBytes); err != nil {
		// Writes still succeed while there is space.
		o.Log.Debug("local store space not preallocated", "path", o.Path, "err", err)
	}
	return &file{dir: dir, db: db}, quarantined, nil
}

// lockTimeout bounds the wait for a lock. A child of a killed agent may hold the lock between fork
// and exec.
const lockTimeout = 3 * time.Second

func lock(dir *os.File) error {
	for end := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock %s: %w", dir.Name(), err)
		case time.Now().After(end):
			return ErrLocked
		}
	}
}

// unusableError is the reason why a file must be quarantined.
type unusableError struct {
	kind   string // damaged, alien, newer or unreadable; part of the new file name
	reason string
}

func (e *unusableError) Error() string { return e.reason }

// unusableOf returns why the file must be quarantined, if it must.
func unusableOf(err error) (*unusableError, bool) {
	if unusable, ok := errors.AsType[*unusableError](err); ok {
		return unusable, true
	}
	if isPathError(err) && !isTransient(err) {
		return &unusableError{"unreadable", fmt.Sprintf("the store cannot be opened: %s", err)}, true
	}
	return nil, false
}

func damagedError(format string, args ...any) *unusableError {
	return &unusableError{"damaged", "the store is damaged: " + fmt.Sprintf(format, args...)}
}

// quarantine renames the file to an unused name that contains the reason and the time.
func quarantine(path string, why *unusableError, now time.Time) (*Quarantined, error) {
	base := fmt.Sprintf("%s.%s-%s", path, why.kind, now.UTC().Format("20060102T150405Z"))
	for i := range 1000 {
		to := base
		if i > 0 {
			to += "-" + strconv.Itoa(i)
		}
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(path, to); err != nil {
			return nil, fmt.Errorf("%w; quarantine failed: %w", why, err)
		}
		return &Quarantined{Path: to, Reason: why.reason}, nil
	}
	return nil, fmt.Errorf("quarantine %s: too many quarantined files", path)
}

// openDB opens the database and verifies that it is readable and belongs to berth. The error is an
// unusableError if the file must be quarantined.
func openDB(o Options) (db *bbolt.DB, err error) {
	path := o.Path
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, &unusableError{
			"alien",
			fmt.Sprintf("the store was not written by berth: %s is %s", path, describeFileType(st.Mode())),
		}
	case st.Size() == 0: // left by an agent that was killed, or created on a full disk
	default:
		if err := checkFile(path, o.Log); err != nil {
			return nil, err
		}
	}
	fresh := st == nil || st.Size() == 0
	err = recoverFault(func() error {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType, NoStatistics: true,
			NoFreelistSync: true}) // free pages are derived from used ones
		return err
	})
	switch {
	case errors.Is(err, bberrors.ErrTimeout):
		return nil, ErrLocked
	case err != nil && fresh:
		return nil, errors.Join(err, os.Remove(path)) // incomplete file created just now
	case errors.Is(err, bberrors.ErrInvalid):
		return nil, &unusableError{"alien", "the store was not written by berth"}
	case err != nil && !isTransient(err) && !isPathError(err):
		return nil, damagedError("%s", err)
	case err != nil:
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if !fresh {
		err = recoverFault(func() error { fresh, err = checkContent(db); return err })
	}
	if fresh && err == nil {
		err = db.Update(initialize)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	db.AllocSize = 1 << 20
	return db, nil
}

// describeFileType returns a description of a file type that is not a regular file.
func describeFileType(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "not a regular file"
}

func isPathError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// initialize writes the owner and the version into an empty database.
func initialize(tx *bbolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists(bucketBerth)
	if err != nil {
		return err
	}
	if _, err := tx.CreateBucketIfNotExists(bucketPods); err != nil {
		return err
	}
	return errors.Join(b.Put(keyApp, []byte("berth")), b.Put(keyVersion, []byte(strconv.Itoa(Version))))
}

// checkContent verifies the owner and the version of the database. empty reports a database that
// was created but not initialized.
func checkContent(db *bbolt.DB) (empty bool, err error) {
	err = db.View(func(tx *bbolt.Tx) error {
		if k, _ := tx.Cursor().First(); k == nil {
			empty = true
			return nil
		}
		return checkOwner(tx)
	})
	return empty, err
}

// checkOwner verifies that berth wrote the store and that the version is supported.
func checkOwner(tx *bbolt.Tx) error {
	b := tx.Bucket(bucketBerth)
	if b == nil || string(b.Get(keyApp)) != "berth" {
		return &unusableError{"alien", "the store was not written by berth"}
	}
	v, err := strconv.Atoi(string(b.Get(keyVersion)))
	switch {
	case err != nil || v < 1 || tx.Bucket(bucketPods) == nil:
		return damagedError("version is missing")
	case v > Version:
		return &unusableError{
			"newer",
			fmt.Sprintf("the store has version %d, this release supports versions up to %d", v, Version),
		}
	}
	return nil
}

// recoverFault runs f and returns a memory fault or panic as an error. The file is mapped into
// memory. Reading a part that was truncated meanwhile causes a fault.
func recoverFault(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = damagedError("%v", r)
		}
	}()
	return f()
}

// reserve allocates disk space in advance, so that the store can still be written when the disk
// becomes full.
func reserve(path string, size int64) error {
	if size < 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // nothing is written through it
	st, err := f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return unix.Fallocate(int(f.Fd()), 0, 0, size)
}
