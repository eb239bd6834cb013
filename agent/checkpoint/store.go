package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
)

// ErrDegraded says that a record could not be made durable. It stays in memory
// and is written when that becomes possible.
var ErrDegraded = errors.New("the local store is in memory only")

// Store keeps the records of the node's pods. It is safe for concurrent use.
//
//	Put, Delete, Sync ──► pending ──► Run: one commit for all that waits ──► file
//	Tell ───────────────► stories ───┘ ▲           │ disk full, read-only
//	                                   └── kept ◄──┘ Degraded; tried again
type Store struct {
	opt            Options
	changed        chan struct{} // something is pending
	flushRequested chan struct{} // somebody waits for it
	historyChanged chan struct{} // a story is to be written some time
	previous       PreviousRun

	mu             sync.Mutex
	file           *file                 // nil: not opened yet (degraded) or closed
	pending        map[types.UID]*Record // newest not yet committed; nil: to be deleted
	nodeValues     map[string][]byte     // likewise, of the node
	waiters        []chan error          // for the commit of all that is pending
	histories      map[types.UID]func() History
	degradedReason string // why; empty: not

	// Of the owner, Run, alone.
	lastWritten map[types.UID]Record // the pod and objects of each pod's last commit
}

func newStore(o Options) *Store {
	return &Store{opt: o, changed: make(chan struct{}, 1), flushRequested: make(chan struct{}, 1), historyChanged: make(chan struct{}, 1),
		pending: map[types.UID]*Record{}, nodeValues: map[string][]byte{}, histories: map[types.UID]func() History{}, lastWritten: map[types.UID]Record{}}
}

// Put keeps a record, replacing that of the same pod. It never waits; what is
// put in quick succession is written once. The record must not be changed after.
func (s *Store) Put(uid types.UID, r Record) {
	s.mu.Lock()
	s.pending[uid] = &r
	s.mu.Unlock()
	notify(s.changed)
}

// Delete forgets a pod. It never waits.
func (s *Store) Delete(uid types.UID) {
	s.mu.Lock()
	s.pending[uid] = nil
	delete(s.histories, uid)
	s.mu.Unlock()
	notify(s.changed)
}

// PutHistory says that the story of a pod has changed. It never waits; the story is
// asked for, by Run, when it is written: with those of all other pods some time
// later, at most once per Options.StoryDelay, and at the end. That of a pod
// without a record is not kept.
func (s *Store) PutHistory(uid types.UID, ask func() History) {
	s.mu.Lock()
	s.histories[uid] = ask
	s.mu.Unlock()
	notify(s.historyChanged)
}

// Sync is Put and waits until the record would survive a power cut. While the
// store is degraded it fails at once with ErrDegraded; the record is kept in
// memory all the same.
func (s *Store) Sync(ctx context.Context, uid types.UID, r Record) error {
	s.mu.Lock()
	s.pending[uid] = &r
	s.mu.Unlock()
	return s.Flush(ctx)
}

// Flush waits until all that was put and noted before would survive a power cut.
// While the store is degraded it fails at once with ErrDegraded.
func (s *Store) Flush(ctx context.Context) error {
	done := make(chan error, 1)
	s.mu.Lock()
	why := s.degradedReason
	if why == "" {
		s.waiters = append(s.waiters, done)
	}
	s.mu.Unlock()
	if why != "" {
		notify(s.changed)
		return fmt.Errorf("%w: %s", ErrDegraded, why)
	}
	notify(s.flushRequested)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Degraded reports whether records are kept in memory only, and why.
func (s *Store) Degraded() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.degradedReason != "", s.degradedReason
}

// Run writes what is put until ctx ends, and once more then. It is the only
// writer and is called once.
func (s *Store) Run(ctx context.Context) error {
	var story <-chan time.Time // nil: none is to be written
	idle := time.NewTicker(heartbeatInterval)
	defer idle.Stop()
	s.markDirty()
	for ctx.Err() == nil {
		s.opt.Heartbeat()
		select {
		case <-ctx.Done():
		case <-idle.C:
		case <-s.flushRequested: // somebody waits: the records alone
			s.commit(nil)
		case <-s.changed:
			if s.waitForBatch(ctx) {
				s.commit(nil)
			}
		case <-s.historyChanged:
			if story == nil {
				story = time.After(s.opt.HistoryDelay)
			}
		case <-story:
			story = nil
			s.commit(s.takeHistories())
		}
		s.recover(ctx)
	}
	s.commit(s.takeHistories())
	s.markClean()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.pending) + len(s.nodeValues); n > 0 {
		return fmt.Errorf("%w: %d records are lost with this process: %s", ErrDegraded, n, s.degradedReason)
	}
	return nil
}

// heartbeatInterval is how often Run shows progress when it has nothing to do.
const heartbeatInterval = 5 * time.Second

// waitForBatch waits a little for company, or until somebody waits for the commit.
// False: the agent leaves; the last commit is made elsewhere.
func (s *Store) waitForBatch(ctx context.Context) bool {
	t := time.NewTimer(s.opt.CommitDelay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.flushRequested:
		return true
	case <-ctx.Done():
		return false
	}
}

// recover tries again and again while the store is degraded.
func (s *Store) recover(ctx context.Context) {
	t := time.NewTicker(s.opt.RetryInterval)
	defer t.Stop()
	for {
		if bad, _ := s.Degraded(); !bad {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.opt.Heartbeat()
			s.commit(s.takeHistories())
		}
	}
}

// takeHistories takes those that are to be written.
func (s *Store) takeHistories() map[types.UID]func() History {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.histories
	s.histories = map[types.UID]func() History{}
	return told
}

// Close closes the file. Call it after Run has returned.
func (s *Store) Close() error {
	s.mu.Lock()
	f := s.file
	s.file = nil
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f.close()
}

// Load returns all records. A damaged one is left out, deleted and named in the
// log. Call it before Run.
func (s *Store) Load() (map[types.UID]Record, error) {
	records := map[types.UID]Record{}
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f == nil {
		return records, nil
	}
	err := recoverFault(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			pods := tx.Bucket(bucketPods)
			return pods.ForEachBucket(func(k []byte) error {
				b := pods.Bucket(k)
				uid := types.UID(k)
				r, err := decode(func(key string) []byte { return b.Get([]byte(key)) })
				if err != nil {
					s.opt.Log.Warn("A damaged record was dropped from the local store", "uid", uid, "part", err)
					s.Delete(uid)
					return nil
				}
				records[uid] = r
				return nil
			})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load store %s: %w", s.opt.Path, err)
	}
	return records, nil
}

// commit writes all that is pending, and the stories told, in one synced
// transaction.
func (s *Store) commit(told map[types.UID]func() History) {
	s.mu.Lock()
	b, waiters, f := batch{s.pending, s.nodeValues, told}, s.waiters, s.file
	idle := b.empty() && len(waiters) == 0 && s.degradedReason == "" && f != nil
	s.pending, s.nodeValues, s.waiters = map[types.UID]*Record{}, map[string][]byte{}, nil
	s.mu.Unlock()
	if idle {
		return
	}

	err := s.reopen(&f)
	if err == nil && !b.empty() {
		err = s.write(f.db, b)
	}
	s.finishCommit(b, f, err)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrDegraded, err)
	}
	for _, w := range waiters {
		w <- err // buffered
	}
}

// reopen opens the file of a store that began on a full disk.
func (s *Store) reopen(f **file) error {
	if *f != nil {
		return nil
	}
	opened, aside, err := openFile(s.opt)
	if err != nil {
		return err
	}
	if aside != nil {
		s.opt.Log.Warn("The local store could not be used and a fresh one was begun", "path", s.opt.Path, "reason", aside.Reason, "kept", aside.Path)
	}
	*f = opened
	return nil
}

// finishCommit takes note of how a commit went. What could not be written is pending
// again unless there is something newer.
func (s *Store) finishCommit(b batch, f *file, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file = f
	before := s.degradedReason
	s.degradedReason = ""
	if err != nil {
		s.degradedReason = err.Error()
		for uid, r := range b.records {
			if _, newer := s.pending[uid]; !newer {
				s.pending[uid] = r
			}
		}
		for key, value := range b.nodeValues {
			if _, newer := s.nodeValues[key]; !newer {
				s.nodeValues[key] = value
			}
		}
		for uid, ask := range b.histories {
			if r, pending := s.pending[uid]; !pending || r != nil {
				s.histories[uid] = ask
			}
		}
	}
	switch {
	case err != nil && before == "":
		s.opt.Log.Warn("The local store is kept in memory only", "path", s.opt.Path, "reason", err)
	case err == nil && before != "":
		s.opt.Log.Info("The local store is written again", "path", s.opt.Path)
	}
}

// write commits the batch and the stories. A record that cannot be encoded is
// named in the log and left out: it must not hold up the others.
func (s *Store) write(db *bbolt.DB, b batch) error {
	c := change{records: make(map[types.UID][]part, len(b.records)), histories: make(map[types.UID][]part, len(b.histories)), nodeValues: nodeParts(b.nodeValues)}
	for uid, r := range b.records {
		if r == nil {
			c.records[uid] = nil
			continue
		}
		p, err := encode(*r, s.lastWritten[uid])
		if err != nil || uid == "" {
			s.opt.Log.Error("A record cannot be stored", "uid", uid, "reason", err)
			continue
		}
		c.records[uid] = p
	}
	for uid, ask := range b.histories {
		if r, changes := b.records[uid]; !changes || r != nil {
			c.histories[uid] = ask().parts()
		}
	}
	same := false
	err := recoverFault(func() (err error) {
		if err = db.View(func(tx *bbolt.Tx) error { same = c.isApplied(tx); return nil }); err != nil || same {
			return err
		}
		return db.Update(c.apply)
	})
	if err != nil {
		return err
	}
	for uid := range c.records {
		if r := b.records[uid]; r != nil {
			s.lastWritten[uid] = Record{Pod: r.Pod, Objects: r.Objects}
		} else {
			delete(s.lastWritten, uid)
		}
	}
	return nil
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
