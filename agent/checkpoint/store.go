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

// ErrDegraded reports that a record could not be made durable. The record stays in memory and is
// written as soon as possible.
var ErrDegraded = errors.New("the local store is in memory only")

// Store keeps the records of the node's pods. It is safe for concurrent use.
//
//	Put, Delete, Sync ──► pending ───► Run: one commit for all changes ──► file
//	PutHistory ─────────► histories ─┘ ▲           │ disk full, read-only
//	                                   └── retry ◄─┘ Degraded
type Store struct {
	opt            Options
	changed        chan struct{} // records or node values are pending
	flushRequested chan struct{} // a caller waits in Flush
	historyChanged chan struct{} // a history is pending
	previous       PreviousRun

	mu             sync.Mutex
	file           *file                 // nil: not open (degraded) or closed
	pending        map[types.UID]*Record // not yet committed; nil: delete
	nodeValues     map[string][]byte     // not yet committed values of the node; nil: delete
	waiters        []chan error          // waiting for the next commit
	histories      map[types.UID]func() History
	degradedReason string    // empty: not degraded
	commitStart    time.Time // of the commit in progress; zero: none
	stallReported  bool      // that the commit in progress takes too long

	// Owned by Run.
	lastWritten map[types.UID]Record // the pod and objects of each pod's last commit
}

func newStore(o Options) *Store {
	return &Store{
		opt:            o,
		changed:        make(chan struct{}, 1),
		flushRequested: make(chan struct{}, 1),
		historyChanged: make(chan struct{}, 1),
		pending:        map[types.UID]*Record{},
		nodeValues:     map[string][]byte{},
		histories:      map[types.UID]func() History{},
		lastWritten:    map[types.UID]Record{},
	}
}

// Put stores a record, replacing the record of the same pod. It never waits. Changes in quick
// succession share one commit. The caller must not change the record afterwards.
func (s *Store) Put(uid types.UID, r Record) {
	s.mu.Lock()
	s.pending[uid] = &r
	s.mu.Unlock()
	notify(s.changed)
}

// Delete deletes the record of a pod. It never waits.
func (s *Store) Delete(uid types.UID) {
	s.mu.Lock()
	s.pending[uid] = nil
	delete(s.histories, uid)
	s.mu.Unlock()
	notify(s.changed)
}

// PutHistory announces that the history of a pod has changed. It never waits. Run calls get when it
// writes the history, together with those of other pods, at most once per Options.HistoryDelay and
// when it ends. The history of a pod without a record is dropped.
func (s *Store) PutHistory(uid types.UID, get func() History) {
	s.mu.Lock()
	s.histories[uid] = get
	s.mu.Unlock()
	notify(s.historyChanged)
}

// Sync stores a record and waits until it survives a power failure. While the store is degraded it
// fails at once with ErrDegraded, and the record stays in memory.
func (s *Store) Sync(ctx context.Context, uid types.UID, r Record) error {
	s.mu.Lock()
	s.pending[uid] = &r
	s.mu.Unlock()
	return s.Flush(ctx)
}

// stallTimeout is how long a commit may take. Commits of a working disk are faster, even on a busy host.
const stallTimeout = 10 * time.Second

// Flush waits until all previous changes survive a power failure. While the store is degraded or the
// disk has not responded for stallTimeout, it fails with ErrDegraded.
func (s *Store) Flush(ctx context.Context) error {
	done := make(chan error, 1)
	s.mu.Lock()
	why := s.problem()
	if why == "" {
		s.waiters = append(s.waiters, done)
	}
	s.mu.Unlock()
	if why != "" {
		notify(s.changed)
		return fmt.Errorf("%w: %s", ErrDegraded, why)
	}
	notify(s.flushRequested)
	check := time.NewTicker(stallTimeout / 10)
	defer check.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-check.C:
			if bad, why := s.Degraded(); bad {
				return fmt.Errorf("%w: %s", ErrDegraded, why)
			}
		}
	}
}

// Degraded reports whether records are in memory only, and why.
func (s *Store) Degraded() (bool, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := s.problem()
	return why != "", why
}

// problem returns why records are in memory only. It returns an empty string if they are not. s.mu must be
// held.
func (s *Store) problem() string {
	if s.degradedReason != "" || s.commitStart.IsZero() || time.Since(s.commitStart) < stallTimeout {
		return s.degradedReason
	}
	if !s.stallReported {
		s.stallReported = true
		s.opt.Log.Warn("local store does not respond", "path", s.opt.Path, "took", stallTimeout)
	}
	return fmt.Sprintf("a write to disk has not completed for %s", stallTimeout)
}

// Run writes changes until ctx ends, and then once more. It is the only writer and must be called
// once.
func (s *Store) Run(ctx context.Context) error {
	var historyTimer <-chan time.Time // nil: no history pending
	idle := time.NewTicker(heartbeatInterval)
	defer idle.Stop()
	s.markDirty()
	for ctx.Err() == nil {
		s.opt.Heartbeat()
		select {
		case <-ctx.Done():
		case <-idle.C:
		case <-s.flushRequested: // a caller waits: write the records only
			s.commit(nil)
		case <-s.changed:
			if s.waitForBatch(ctx) {
				s.commit(nil)
			}
		case <-s.historyChanged:
			if historyTimer == nil {
				historyTimer = time.After(s.opt.HistoryDelay)
			}
		case <-historyTimer:
			historyTimer = nil
			s.commit(s.takeHistories())
		}
		s.recover(ctx)
	}
	s.commit(s.takeHistories())
	s.markClean()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.pending) + len(s.nodeValues); n > 0 {
		return fmt.Errorf("%w: %d unwritten records are lost: %s", ErrDegraded, n, s.degradedReason)
	}
	return nil
}

// heartbeatInterval is the interval of heartbeats while Run is idle.
const heartbeatInterval = 5 * time.Second

// waitForBatch waits for more changes, until a caller waits in Flush. It returns false when ctx
// ends. Run then makes the last commit.
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

// recover retries the commit while the store is degraded.
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

// takeHistories takes the pending histories.
func (s *Store) takeHistories() map[types.UID]func() History {
	s.mu.Lock()
	defer s.mu.Unlock()
	histories := s.histories
	s.histories = map[types.UID]func() History{}
	return histories
}

// Close closes the file. It must be called after Run has returned.
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

// Load returns all records. A damaged record is left out, logged and deleted. It must be called
// before Run.
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
					s.opt.Log.Warn("damaged record dropped from local store", "podUID", uid, "err", err)
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

// commit writes everything that is pending, and the given histories, in one synced transaction.
func (s *Store) commit(histories map[types.UID]func() History) {
	s.mu.Lock()
	b, waiters, f := batch{s.pending, s.nodeValues, histories}, s.waiters, s.file
	idle := b.empty() && len(waiters) == 0 && s.degradedReason == "" && f != nil
	s.pending, s.nodeValues, s.waiters = map[types.UID]*Record{}, map[string][]byte{}, nil
	if !idle {
		s.commitStart, s.stallReported = time.Now(), false
	}
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

// reopen opens the file if the store started without one.
func (s *Store) reopen(f **file) error {
	if *f != nil {
		return nil
	}
	opened, quarantined, err := openFile(s.opt)
	if err != nil {
		return err
	}
	if quarantined != nil {
		s.opt.Log.Warn("local store quarantined", "path", s.opt.Path, "reason", quarantined.Reason,
			"quarantinePath", quarantined.Path)
	}
	*f = opened
	return nil
}

// finishCommit records the result of a commit. After a failure the batch is pending again, except
// for what has changed meanwhile.
func (s *Store) finishCommit(b batch, f *file, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file, s.commitStart = f, time.Time{}
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
		for uid, get := range b.histories {
			if r, pending := s.pending[uid]; !pending || r != nil {
				s.histories[uid] = get
			}
		}
	}
	switch {
	case err != nil && before == "":
		s.opt.Log.Warn("local store is in memory only", "path", s.opt.Path, "err", err)
	case err == nil && before != "":
		s.opt.Log.Info("local store available again", "path", s.opt.Path)
	}
}

// write commits the batch. A record that cannot be encoded is logged and left out, so that it does
// not block others.
func (s *Store) write(db *bbolt.DB, b batch) error {
	c := change{
		records:    make(map[types.UID][]part, len(b.records)),
		histories:  make(map[types.UID][]part, len(b.histories)),
		nodeValues: nodeParts(b.nodeValues),
	}
	for uid, r := range b.records {
		if r == nil {
			c.records[uid] = nil
			continue
		}
		p, err := encode(*r, s.lastWritten[uid])
		if err != nil || uid == "" {
			s.opt.Log.Error("record encoding failed", "podUID", uid, "err", err)
			continue
		}
		c.records[uid] = p
	}
	for uid, get := range b.histories {
		if r, changes := b.records[uid]; !changes || r != nil {
			c.histories[uid] = get().parts()
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
