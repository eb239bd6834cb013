package policyaddresses

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"berth/services/policy/addresses"
	v1 "berth/services/policy/addresses/v1"
)

// journalSize is the number of changes that a watch can be behind.
const journalSize = 10000

// journal holds the current objects and their last changes. It is safe for concurrent use. Objects are
// never modified.
type journal struct {
	mu       sync.Mutex
	objects  map[string]*v1.NetworkPolicyAddresses
	first    uint64 // version before changes[0]
	version  uint64 // of the last change
	changes  []watch.Event
	advanced chan struct{} // closed at the next change
}

// newJournal returns a journal whose versions start at base.
func newJournal(base uint64) *journal {
	return &journal{
		objects: map[string]*v1.NetworkPolicyAddresses{}, first: base, version: base, advanced: make(chan struct{}),
	}
}

// apply records changes.
func (j *journal) apply(all []addresses.Change) {
	if len(all) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range all {
		old := j.objects[c.Name]
		if c.Object == nil && old == nil {
			continue
		}
		j.version++
		version := strconv.FormatUint(j.version, 10)
		event := watch.Event{Type: watch.Modified}
		if c.Object == nil {
			last := *old
			last.ResourceVersion = version
			event = watch.Event{Type: watch.Deleted, Object: &last}
			delete(j.objects, c.Name)
		} else {
			c.Object.ResourceVersion = version
			event.Object = c.Object
			if old == nil {
				event.Type = watch.Added
			}
			j.objects[c.Name] = c.Object
		}
		j.changes = append(j.changes, event)
	}
	if surplus := len(j.changes) - journalSize; surplus > 0 {
		j.changes = slices.Clone(j.changes[surplus:]) // does not keep the old ones in memory
		j.first += uint64(surplus)
	}
	close(j.advanced)
	j.advanced = make(chan struct{})
}

// list returns the objects sorted by name, and their version.
func (j *journal) list() ([]*v1.NetworkPolicyAddresses, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := slices.SortedFunc(maps.Values(j.objects), func(a, b *v1.NetworkPolicyAddresses) int {
		return strings.Compare(a.Name, b.Name)
	})
	return all, j.version
}

// get returns an object, or nil.
func (j *journal) get(name string) *v1.NetworkPolicyAddresses {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.objects[name]
}

// since returns the changes after a version, the version of the last one, and a channel that is closed at
// the next change. The error is Expired if the changes are not known any more, or never were here.
func (j *journal) since(version uint64) ([]watch.Event, uint64, <-chan struct{}, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if version < j.first || version > j.version {
		return nil, 0, nil, apierrors.NewResourceExpired(fmt.Sprintf("resource version %d is not known", version))
	}
	return j.changes[version-j.first:], j.version, j.advanced, nil
}
