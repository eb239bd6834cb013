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
	records map[types.UID][]part // nil: the pod is deleted
	stories map[types.UID][]part // of pods that have a record
	notes   []part               // of the node
}

// made reports whether the file says all this already: then nothing need be
// synced, as every commit is.
func (c change) made(tx *bbolt.Tx) bool {
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
	for uid, list := range c.stories {
		if b := pods.Bucket([]byte(uid)); b != nil && !same(b, list) {
			return false
		}
	}
	b := tx.Bucket(bucketNode)
	return len(c.notes) == 0 || b != nil && same(b, c.notes)
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
	for uid, list := range c.stories {
		if b := pods.Bucket([]byte(uid)); b != nil {
			if err := put(b, list); err != nil {
				return err
			}
		}
	}
	if len(c.notes) > 0 {
		b, err := tx.CreateBucketIfNotExists(bucketNode)
		if err != nil {
			return err
		}
		if err := put(b, c.notes); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketBerth).Delete(keyLeft) // whoever writes has not left, should signOn have failed
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

// LastLife is what the store knows of the agent that had it open before.
type LastLife struct {
	Until time.Time // when it left, or else wrote last; zero: there was none
	Left  bool      // it has left by itself: it was not killed, and did not crash
}

// Last tells of the agent that had the store open before this one.
func (s *Store) Last() LastLife { return s.last }

// signOn takes back what the life before has signed: an agent that is killed
// before it had anything to write has not left by itself.
func (s *Store) signOn() {
	if s.last.Left {
		s.sign(func(b *bbolt.Bucket) error { return b.Delete(keyLeft) })
	}
}

// signOff says in the file that the agent has left by itself.
func (s *Store) signOff() {
	s.sign(func(b *bbolt.Bucket) error {
		at, err := time.Now().MarshalText()
		if err != nil {
			return err
		}
		return b.Put(keyLeft, at)
	})
}

func (s *Store) sign(how func(*bbolt.Bucket) error) {
	s.mu.Lock()
	f, bad := s.file, s.degraded != ""
	s.mu.Unlock()
	if f == nil || bad {
		return
	}
	err := guard(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error { return how(tx.Bucket(bucketBerth)) })
	})
	if err != nil { // its end will look like another: no more than that
		s.opt.Log.Debug("The local store was not signed", "reason", err)
	}
}

// readLast reads what the life before has left in an open file, whose time of
// writing was taken before it was opened.
func readLast(db *bbolt.DB, wrote time.Time) (last LastLife) {
	last.Until = wrote
	err := guard(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			text := tx.Bucket(bucketBerth).Get(keyLeft)
			if text == nil {
				return nil
			}
			var at time.Time
			if err := at.UnmarshalText(text); err != nil {
				return fmt.Errorf("read when the last agent left: %w", err)
			}
			last = LastLife{Until: at, Left: true}
			return nil
		})
	})
	if err != nil {
		return LastLife{Until: wrote}
	}
	return last
}
