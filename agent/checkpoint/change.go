package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
	"k8s.io/apimachinery/pkg/types"
)

// change is the content of one commit.
type change struct {
	records    map[types.UID][]part // nil: delete the pod
	histories  map[types.UID][]part // only for pods that have a record
	nodeValues []part               // values of the node
}

// isApplied reports whether the file already has this content. A commit without changes would only
// cost a disk sync.
func (c change) isApplied(tx *bbolt.Tx) bool {
	pods := tx.Bucket(bucketPods)
	same := func(b *bbolt.Bucket, list []part) bool {
		for _, p := range list {
			if string(b.Get([]byte(p.key))) != string(p.value) {
				return false
			}
		}
		return true
	}
	for uid, list := range c.records {
		b := pods.Bucket([]byte(uid))
		if (b == nil) != (list == nil) || !same(b, list) {
			return false
		}
	}
	for uid, list := range c.histories {
		if b := pods.Bucket([]byte(uid)); b != nil && !same(b, list) {
			return false
		}
	}
	b := tx.Bucket(bucketNode)
	return len(c.nodeValues) == 0 || b != nil && same(b, c.nodeValues)
}

func (c change) apply(tx *bbolt.Tx) error {
	pods := tx.Bucket(bucketPods)
	for uid, list := range c.records {
		if list == nil {
			err := pods.DeleteBucket([]byte(uid))
			if err == nil {
				err = addDeleted(tx, uid, time.Now())
			}
			if err != nil && !errors.Is(err, bberrors.ErrBucketNotFound) {
				return err
			}
			continue
		}
		b, err := pods.CreateBucketIfNotExists([]byte(uid))
		if err != nil {
			return err
		}
		if err := put(b, list); err != nil {
			return err
		}
	}
	for uid, list := range c.histories {
		if b := pods.Bucket([]byte(uid)); b != nil {
			if err := put(b, list); err != nil {
				return err
			}
		}
	}
	if len(c.nodeValues) > 0 {
		b, err := tx.CreateBucketIfNotExists(bucketNode)
		if err != nil {
			return err
		}
		if err := put(b, c.nodeValues); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketBerth).Delete(keyCleanExit) // in case markDirty failed
}

func put(b *bbolt.Bucket, list []part) (err error) {
	for _, p := range list {
		if p.value == nil {
			err = b.Delete([]byte(p.key))
		} else if string(b.Get([]byte(p.key))) != string(p.value) {
			err = b.Put([]byte(p.key), p.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// PreviousRun describes the agent that had the store open before.
type PreviousRun struct {
	EndedAt   time.Time // time of the clean exit, else of the last write; zero: no previous run
	CleanExit bool      // the agent neither crashed nor was killed
}

// PreviousRun returns what the store knows about the agent that had it open before.
func (s *Store) PreviousRun() PreviousRun { return s.previous }

// markDirty removes the clean-exit mark of the previous run, so that a crash before the first write
// is detected.
func (s *Store) markDirty() {
	if s.previous.CleanExit {
		s.updateMeta(func(b *bbolt.Bucket) error { return b.Delete(keyCleanExit) })
	}
}

// markClean records a clean exit of the agent in the file.
func (s *Store) markClean() {
	s.updateMeta(func(b *bbolt.Bucket) error {
		at, err := time.Now().MarshalText()
		if err != nil {
			return err
		}
		return b.Put(keyCleanExit, at)
	})
}

func (s *Store) updateMeta(how func(*bbolt.Bucket) error) {
	s.mu.Lock()
	f, bad := s.file, s.degradedReason != ""
	s.mu.Unlock()
	if f == nil || bad {
		return
	}
	err := recoverFault(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error { return how(tx.Bucket(bucketBerth)) })
	})
	if err != nil { // this run will look like a crash, nothing else depends on it
		s.opt.Log.Debug("local store not marked", "err", err)
	}
}

// readPreviousRun reads the clean-exit mark of an open file. wrote is the modification time of the
// file before it was opened.
func readPreviousRun(db *bbolt.DB, wrote time.Time) (last PreviousRun) {
	last.EndedAt = wrote
	err := recoverFault(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			text := tx.Bucket(bucketBerth).Get(keyCleanExit)
			if text == nil {
				return nil
			}
			var at time.Time
			if err := at.UnmarshalText(text); err != nil {
				return fmt.Errorf("decode time of clean exit: %w", err)
			}
			last = PreviousRun{EndedAt: at, CleanExit: true}
			return nil
		})
	})
	if err != nil {
		return PreviousRun{EndedAt: wrote}
	}
	return last
}
