package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/types"
)

// batch is the input of one commit.
type batch struct {
	records    map[types.UID]*Record // nil: delete
	nodeValues map[string][]byte
	histories  map[types.UID]func() History
}

func (b batch) empty() bool { return len(b.records)+len(b.nodeValues)+len(b.histories) == 0 }

// PutNodeValue stores a value that concerns the node and not a single pod, replacing the value of
// the key. nil deletes the key. It never waits (see Flush). The caller must not change the value
// afterwards.
func (s *Store) PutNodeValue(key string, value []byte) {
	s.PutNodeValues(map[string][]byte{key: value})
}

// PutNodeValues is PutNodeValue for several keys: after a crash, either all of them are stored or none.
func (s *Store) PutNodeValues(values map[string][]byte) {
	s.mu.Lock()
	maps.Copy(s.nodeValues, values)
	s.mu.Unlock()
	notify(s.changed)
}

// NodeValues returns the values whose keys have a prefix. A damaged value is left out and logged. It
// must be called before Run.
func (s *Store) NodeValues(prefix string) (map[string][]byte, error) {
	out := map[string][]byte{}
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f == nil {
		return out, nil
	}
	err := recoverFault(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketNode)
			if b == nil {
				return nil
			}
			c := b.Cursor()
			for k, raw := c.Seek([]byte(prefix)); k != nil && strings.HasPrefix(string(k), prefix); k, raw = c.Next() {
				value, err := verifyChecksum(raw)
				if err != nil {
					s.opt.Log.Warn("damaged value dropped from local store", "key", string(k), "err", err)
					continue
				}
				out[string(k)] = slices.Clone(value)
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load values from store %s: %w", s.opt.Path, err)
	}
	return out, nil
}

// NodeValue returns the value of a key, or nil if there is none. It must be called before Run.
func (s *Store) NodeValue(key string) (value []byte, err error) {
	s.mu.Lock()
	f := s.file
	s.mu.Unlock()
	if f == nil {
		return nil, nil
	}
	err = recoverFault(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketNode)
			if b == nil {
				return nil
			}
			raw := b.Get([]byte(key))
			if raw == nil {
				return nil
			}
			text, err := verifyChecksum(raw)
			value = slices.Clone(text)
			return err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load %s from store %s: %w", key, s.opt.Path, err)
	}
	return value, nil
}

// nodeParts encodes values of the node, sorted by key.
func nodeParts(notes map[string][]byte) (parts []part) {
	for key, value := range notes {
		p := part{key: key}
		if value != nil {
			p.value = addChecksum(value)
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.key, b.key) })
	return parts
}
