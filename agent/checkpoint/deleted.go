package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
)

// maxDeleted is how many deleted pods the store remembers.
const maxDeleted = 1024

// bucketDeleted has the UIDs of the pods whose records were deleted last. A key is the time in
// nanoseconds (8 bytes, big endian) followed by the UID, so that the oldest pods come first.
var bucketDeleted = []byte("deleted")

// DeletedPods returns the pods whose records were deleted last, oldest first. It must be called
// before Run.
func (s *Store) DeletedPods() (uids []types.UID, err error) {
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f == nil {
		return nil, nil
	}
	err = recoverFault(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketDeleted)
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, _ []byte) error {
				if len(k) > 8 {
					uids = append(uids, types.UID(k[8:]))
				}
				return nil
			})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load deleted pods from store %s: %w", s.opt.Path, err)
	}
	return uids, nil
}

// addDeleted records the deletion of a pod, and forgets the oldest ones.
func addDeleted(tx *bbolt.Tx, uid types.UID, at time.Time) error {
	b, err := tx.CreateBucketIfNotExists(bucketDeleted)
	if err != nil {
		return err
	}
	key := append(binary.BigEndian.AppendUint64(nil, uint64(max(at.UnixNano(), 0))), uid...)
	if err := b.Put(key, []byte{}); err != nil {
		return err
	}
	var old [][]byte
	c, n := b.Cursor(), 0
	for k, _ := c.Last(); k != nil; k, _ = c.Prev() {
		if n++; n > maxDeleted {
			old = append(old, bytes.Clone(k))
		}
	}
	for _, k := range old {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
