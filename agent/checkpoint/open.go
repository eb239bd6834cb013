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

// ErrLocked says that another agent has the store open.
var ErrLocked = errors.New("another berth is running with this state directory")

var (
	bucketBerth  = []byte("berth")
	bucketPods   = []byte("pods")
	bucketNode   = []byte("node") // made with the first note
	keyApp       = []byte("app")
	keyVersion   = []byte("version")
	keyCleanExit = []byte("left") // when the agent that wrote last has left; absent: it has not
)

// Options is what Open needs. Path and Log must be given.
type Options struct {
	Path             string        // of the file; its directory is made if absent, and locked
	Log              *slog.Logger  // state changes only, never content
	PreallocateBytes int64         // bytes allocated in advance; default 4 MiB, negative: none
	CommitDelay      time.Duration // how long Put waits for company; default 200 ms
	RetryInterval    time.Duration // between tries while the disk is full; default 5 s

	HistoryDelay time.Duration // how long Tell waits for company; default 1 s

	// Heartbeat is told that Run makes progress, every few seconds at least; nil: nobody asks.
	Heartbeat func()
}

// Quarantined tells of a store that could not be used and was renamed.
type Quarantined struct {
	Path   string // where it is now
	Reason string // one sentence for the user
}

func (s Quarantined) String() string { return s.Reason + "; kept as " + s.Path }

// Open opens or makes the store. What is at Path and is damaged, alien, of a
// newer version, unreadable or no file at all is set aside and a fresh store
// begun; the second result then says so. Where that cannot be done, and on a
// full or read-only disk, the store begins in memory: see Degraded. The only
// error is ErrLocked.
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
	f, aside, err := openFile(o)
	switch {
	case err == nil:
		s.file = f
		if statErr == nil && aside == nil {
			s.previous = readPreviousRun(f.db, st.ModTime())
		}
	case errors.Is(err, ErrLocked):
		return nil, nil, fmt.Errorf("open store %s: %w", o.Path, err)
	default: // no reason to leave the pods alone; tried again
		s.degradedReason = err.Error()
		o.Log.Warn("The local store is kept in memory only", "path", o.Path, "reason", err)
	}
	return s, aside, nil
}

// file is an open store file: the lock on its directory and the database.
type file struct {
	dir *os.File // holds the lock
	db  *bbolt.DB
}

func (f *file) close() error {
	err := f.db.Close()
	return errors.Join(err, f.dir.Close())
}

// isTransient reports whether the cause may go away without a hand.
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
	f, aside, err := openLocked(o, d)
	if err != nil {
		return nil, aside, errors.Join(err, d.Close())
	}
	return f, aside, nil
}

// openLocked takes the lock first: a file that another agent is writing to must
// not be judged, let alone be renamed.
func openLocked(o Options, dir *os.File) (*file, *Quarantined, error) {
	if err := lock(dir); err != nil {
		return nil, nil, err
	}
	var aside *Quarantined
	db, err := openDB(o.Path)
	if unusable, ok := unusableOf(err); ok {
		if aside, err = quarantine(o.Path, unusable, time.Now()); err != nil {
			return nil, nil, err
		}
		if err := dir.Sync(); err != nil {
			return nil, aside, err
		}
		db, err = openDB(o.Path)
	}
	if err != nil {
		return nil, aside, err
	}
	if err := reserve(o.Path, o.PreallocateBytes); err != nil {
		// Only an advance: writing goes on as long as there is space.
		o.Log.Debug("No space reserved for the local store", "path", o.Path, "reason", err)
	}
	return &file{dir: dir, db: db}, aside, nil
}

// lockTimeout is how long a lock is waited for. An agent that was killed a moment
// ago may have left a child between fork and exec, which still holds it.
const lockTimeout = time.Second

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

// unusableError says why a store must be set aside.
type unusableError struct {
	kind   string // damaged, alien, newer or unreadable: part of the new name
	reason string
}

func (e *unusableError) Error() string { return e.reason }

// unusableOf returns why what is there must be set aside, if it must.
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

// quarantine renames the file to a name that is free and tells what and when.
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
			return nil, fmt.Errorf("%w, and it cannot be set aside: %w", why, err)
		}
		return &Quarantined{Path: to, Reason: why.reason}, nil
	}
	return nil, fmt.Errorf("set %s aside: too many are there already", path)
}

// openDB opens the database and proves that it can be read and is ours, or
// says with an unusableError why not.
func openDB(path string) (db *bbolt.DB, err error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, &unusableError{"alien", fmt.Sprintf("the store was not written by berth: %s is %s", path, describeFileType(st.Mode()))}
	case st.Size() == 0: // made by an agent that died at once, or on a full disk
	default:
		if err := verify(path); err != nil {
			return nil, err
		}
	}
	fresh := st == nil || st.Size() == 0
	err = recoverFault(func() error {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType, NoStatistics: true,
			NoFreelistSync: true}) // what is free follows from what is not: one thing less to be torn
		return err
	})
	switch {
	case errors.Is(err, bberrors.ErrTimeout):
		return nil, ErrLocked
	case err != nil && fresh:
		return nil, errors.Join(err, os.Remove(path)) // half made by us, just now
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

// describeFileType says what lies where a file should.
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
	return "no file"
}

func isPathError(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// initialize writes what makes an empty database ours.
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

// checkContent tells whose store it is. empty: whoever made it died before it was ours.
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

// checkOwner tells our stores from alien and newer ones.
func checkOwner(tx *bbolt.Tx) error {
	b := tx.Bucket(bucketBerth)
	if b == nil || string(b.Get(keyApp)) != "berth" {
		return &unusableError{"alien", "the store was not written by berth"}
	}
	v, err := strconv.Atoi(string(b.Get(keyVersion)))
	switch {
	case err != nil || v < 1 || tx.Bucket(bucketPods) == nil:
		return damagedError("it does not say its version")
	case v > Version:
		return &unusableError{"newer", fmt.Sprintf("the store has version %d and this berth knows versions up to %d", v, Version)}
	}
	return nil
}

// recoverFault runs f so that a memory fault or panic on a damaged file becomes an
// error. The file is mapped: what somebody cuts off it is a fault when it is read.
func recoverFault(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = damagedError("%v", r)
		}
	}()
	return f()
}

// reserve allocates disk space in advance, so that a disk that fills up later
// does not at once stop the store.
func reserve(path string, size int64) error {
	if size < 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // nothing was written through it
	st, err := f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return unix.Fallocate(int(f.Fd()), 0, 0, size)
}
