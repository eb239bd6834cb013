package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
	"k8s.io/apimachinery/pkg/types"
)

// change is what one commit writes.
type change struct {
	records    map[types.UID][]part // nil: the pod is deleted
	histories  map[types.UID][]part // of pods that have a record
	nodeValues []part               // of the node
}

// isApplied reports whether the file says all this already: then nothing need be
// synced, as every commit is.
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
			if err := pods.DeleteBucket([]byte(uid)); err != nil && !errors.Is(err, bberrors.ErrBucketNotFound) {
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
	return tx.Bucket(bucketBerth).Delete(keyCleanExit) // whoever writes has not left, should signOn have failed
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

// PreviousRun is what the store knows of the agent that had it open before.
type PreviousRun struct {
	EndedAt   time.Time // when it left, or else wrote last; zero: there was none
	CleanExit bool      // it has left by itself: it was not killed, and did not crash
}

// PreviousRun tells of the agent that had the store open before this one.
func (s *Store) PreviousRun() PreviousRun { return s.previous }

// markDirty takes back what the life before has signed: an agent that is killed
// before it had anything to write has not left by itself.
func (s *Store) markDirty() {
	if s.previous.CleanExit {
		s.updateMeta(func(b *bbolt.Bucket) error { return b.Delete(keyCleanExit) })
	}
}

// markClean says in the file that the agent has left by itself.
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
	if err != nil { // its end will look like another: no more than that
		s.opt.Log.Debug("The local store was not signed", "reason", err)
	}
}

// readPreviousRun reads what the life before has left in an open file, whose time of
// writing was taken before it was opened.
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
				return fmt.Errorf("read when the last agent left: %w", err)
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
