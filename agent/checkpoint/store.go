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
	opt  Options
	wake chan struct{} // something is pending
	now  chan struct{} // somebody waits for it
	told chan struct{} // a story is to be written some time
	last LastLife

	mu       sync.Mutex
	file     *file                 // nil: not opened yet (degraded) or closed
	pending  map[types.UID]*Record // newest not yet committed; nil: to be deleted
	notes    map[string][]byte     // likewise, of the node
	waiters  []chan error          // for the commit of all that is pending
	stories  map[types.UID]func() Story
	degraded string // why; empty: not

	// Of the owner, Run, alone.
	written map[types.UID]Record // the pod and objects of each pod's last commit
}

func newStore(o Options) *Store {
	return &Store{opt: o, wake: make(chan struct{}, 1), now: make(chan struct{}, 1), told: make(chan struct{}, 1),
		pending: map[types.UID]*Record{}, notes: map[string][]byte{}, stories: map[types.UID]func() Story{}, written: map[types.UID]Record{}}
}

// Put keeps a record, replacing that of the same pod. It never waits; what is
// put in quick succession is written once. The record must not be changed after.
func (s *Store) Put(uid types.UID, r Record) {
	s.mu.Lock()
	s.pending[uid] = &r
	s.mu.Unlock()
	nudge(s.wake)
}

// Delete forgets a pod. It never waits.
func (s *Store) Delete(uid types.UID) {
	s.mu.Lock()
	s.pending[uid] = nil
	delete(s.stories, uid)
	s.mu.Unlock()
	nudge(s.wake)
}

// Tell says that the story of a pod has changed. It never waits; the story is
// asked for, by Run, when it is written: with those of all other pods some time
// later, at most once per Options.StoryDelay, and at the end. That of a pod
// without a record is not kept.
func (s *Store) Tell(uid types.UID, ask func() Story) {
	s.mu.Lock()
	s.stories[uid] = ask
	s.mu.Unlock()
	nudge(s.told)
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
	why := s.degraded
	if why == "" {
		s.waiters = append(s.waiters, done)
	}
	s.mu.Unlock()
	if why != "" {
		nudge(s.wake)
		return fmt.Errorf("%w: %s", ErrDegraded, why)
	}
	nudge(s.now)
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
	return s.degraded != "", s.degraded
}

// Run writes what is put until ctx ends, and once more then. It is the only
// writer and is called once.
func (s *Store) Run(ctx context.Context) error {
	var story <-chan time.Time // nil: none is to be written
	idle := time.NewTicker(shows)
	defer idle.Stop()
	s.signOn()
	for ctx.Err() == nil {
		s.opt.Pulse()
		select {
		case <-ctx.Done():
		case <-idle.C:
		case <-s.now: // somebody waits: the records alone
			s.commit(nil)
		case <-s.wake:
			if s.gather(ctx) {
				s.commit(nil)
			}
		case <-s.told:
			if story == nil {
				story = time.After(s.opt.StoryDelay)
			}
		case <-story:
			story = nil
			s.commit(s.takeStories())
		}
		s.recover(ctx)
	}
	s.commit(s.takeStories())
	s.signOff()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.pending) + len(s.notes); n > 0 {
		return fmt.Errorf("%w: %d records are lost with this process: %s", ErrDegraded, n, s.degraded)
	}
	return nil
}

// shows is how often Run shows progress when it has nothing to do.
const shows = 5 * time.Second

// gather waits a little for company, or until somebody waits for the commit.
// False: the agent leaves; the last commit is made elsewhere.
func (s *Store) gather(ctx context.Context) bool {
	t := time.NewTimer(s.opt.Delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.now:
		return true
	case <-ctx.Done():
		return false
	}
}

// recover tries again and again while the store is degraded.
func (s *Store) recover(ctx context.Context) {
	t := time.NewTicker(s.opt.Retry)
	defer t.Stop()
	for {
		if bad, _ := s.Degraded(); !bad {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.opt.Pulse()
			s.commit(s.takeStories())
		}
	}
}

// takeStories takes those that are to be written.
func (s *Store) takeStories() map[types.UID]func() Story {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.stories
	s.stories = map[types.UID]func() Story{}
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
	err := guard(func() error {
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
func (s *Store) commit(told map[types.UID]func() Story) {
	s.mu.Lock()
	b, waiters, f := batch{s.pending, s.notes, told}, s.waiters, s.file
	idle := b.empty() && len(waiters) == 0 && s.degraded == "" && f != nil
	s.pending, s.notes, s.waiters = map[types.UID]*Record{}, map[string][]byte{}, nil
	s.mu.Unlock()
	if idle {
		return
	}

	err := s.reopen(&f)
	if err == nil && !b.empty() {
		err = s.write(f.db, b)
	}
	s.settle(b, f, err)
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

// settle takes note of how a commit went. What could not be written is pending
// again unless there is something newer.
func (s *Store) settle(b batch, f *file, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file = f
	before := s.degraded
	s.degraded = ""
	if err != nil {
		s.degraded = err.Error()
		for uid, r := range b.records {
			if _, newer := s.pending[uid]; !newer {
				s.pending[uid] = r
			}
		}
		for key, value := range b.notes {
			if _, newer := s.notes[key]; !newer {
				s.notes[key] = value
			}
		}
		for uid, ask := range b.told {
			if r, pending := s.pending[uid]; !pending || r != nil {
				s.stories[uid] = ask
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
	c := change{records: make(map[types.UID][]part, len(b.records)), stories: make(map[types.UID][]part, len(b.told)), notes: noteParts(b.notes)}
	for uid, r := range b.records {
		if r == nil {
			c.records[uid] = nil
			continue
		}
		p, err := encode(*r, s.written[uid])
		if err != nil || uid == "" {
			s.opt.Log.Error("A record cannot be stored", "uid", uid, "reason", err)
			continue
		}
		c.records[uid] = p
	}
	for uid, ask := range b.told {
		if r, changes := b.records[uid]; !changes || r != nil {
			c.stories[uid] = ask().parts()
		}
	}
	same := false
	err := guard(func() (err error) {
		if err = db.View(func(tx *bbolt.Tx) error { same = c.made(tx); return nil }); err != nil || same {
			return err
		}
		return db.Update(c.apply)
	})
	if err != nil {
		return err
	}
	for uid := range c.records {
		if r := b.records[uid]; r != nil {
			s.written[uid] = Record{Pod: r.Pod, Objects: r.Objects}
		} else {
			delete(s.written, uid)
		}
	}
	return nil
}

func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
