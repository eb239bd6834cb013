package status

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Snapshot is the state of one pod after one sync. It is immutable.
type Snapshot struct {
	At          time.Time
	Pod         *corev1.Pod
	Termination *plan.Termination
	Verdict     plan.Verdict
	Status      corev1.PodStatus
	Observed    plan.Observed
	Refs        map[plan.Ref]plan.Version
	InProgress  []ActionInProgress
	Failures    map[plan.ActionKey]plan.Failure
	Reasons     []ReportedReason
	Memory      plan.Memory // read-only: shared with the next sync
	Syncs       int64
	Wake        time.Time
}

// ActionInProgress is an action in progress.
type ActionInProgress struct {
	Action plan.Action
	Since  time.Time
}

// ReportedReason is a decision and the time at which it was first made.
type ReportedReason struct {
	plan.Reason
	Since time.Time
}

// Object returns the desired pod with its status, as users see it.
func (s *Snapshot) Object() *corev1.Pod {
	pod := *s.Pod
	pod.Status = s.Status
	if s.Termination != nil && s.Termination.RemovePod && pod.DeletionTimestamp == nil {
		meta := pod.ObjectMeta.DeepCopy()
		at := s.Termination.RequestedAt.Add(s.Termination.Grace)
		grace := int64(s.Termination.Grace / time.Second)
		meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, &grace
		pod.ObjectMeta = *meta
	}
	return &pod
}

// sameObject reports whether both snapshots result in the same object.
func (s *Snapshot) sameObject(other *Snapshot) bool {
	return s.Pod == other.Pod && reflect.DeepEqual(s.Termination, other.Termination) &&
		reflect.DeepEqual(&s.Status, &other.Status)
}

// compare orders by namespace and name.
func (s *Snapshot) compare(other *Snapshot) int {
	x, y := s.Pod, other.Pod
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
}

// Cache holds the newest snapshot of every pod. It is safe for concurrent use.
type Cache struct {
	// OnChange is called with every changed snapshot, and with removed and the last snapshot of a
	// removed pod. It must be set before the first Put and must not block.
	OnChange func(s *Snapshot, removed bool)

	mu          sync.RWMutex
	pods        map[types.UID]*Snapshot
	subscribers map[int]chan struct{}
	next        int
}

// New returns an empty cache.
func New() *Cache {
	return &Cache{pods: map[types.UID]*Snapshot{}, subscribers: map[int]chan struct{}{}}
}

// Put replaces the snapshot of a pod. Subscribers are notified only if its content has changed.
func (c *Cache) Put(s *Snapshot) {
	was, _ := c.Get(s.Pod.UID)
	changed := was == nil || !sameContent(was, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[s.Pod.UID] = s
	if changed {
		c.notify()
	}
	if changed && c.OnChange != nil {
		c.OnChange(s, false)
	}
}

// sameContent reports whether two snapshots differ only in At, Syncs and Wake. It runs in every
// sync and must not copy the snapshots.
func sameContent(a, b *Snapshot) bool {
	return a.Verdict == b.Verdict && a.Pod == b.Pod && maps.Equal(a.Refs, b.Refs) &&
		reflect.DeepEqual(&a.Status, &b.Status) && reflect.DeepEqual(&a.Observed, &b.Observed) &&
		reflect.DeepEqual(a.InProgress, b.InProgress) && reflect.DeepEqual(a.Failures, b.Failures) &&
		reflect.DeepEqual(a.Reasons, b.Reasons) &&
		reflect.DeepEqual(a.Termination, b.Termination) && reflect.DeepEqual(&a.Memory, &b.Memory)
}

// Remove removes a pod.
func (c *Cache) Remove(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, known := c.pods[uid]; known && c.OnChange != nil {
		c.OnChange(s, true)
	}
	delete(c.pods, uid)
	c.notify()
}

func (c *Cache) notify() {
	for _, ch := range c.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// List returns the newest snapshots, ordered by namespace and name.
func (c *Cache) List() []*Snapshot {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.SortedFunc(maps.Values(c.pods), (*Snapshot).compare)
}

// Find returns the pod with the name. If there are several, a pod that has been synced comes before
// one that waits for the name, and a desired pod before a terminating one.
func (c *Cache) Find(namespace, name string) (*Snapshot, bool) {
	var found *Snapshot
	for _, s := range c.ListByName(namespace, name) {
		has, had := s.Syncs > 0, found != nil && found.Syncs > 0
		if found == nil || has && !had || has == had && s.Termination == nil {
			found = s
		}
	}
	return found, found != nil
}

// WaitingForName returns the other pods with the name of s that have not been synced, because they
// wait for the name.
func (c *Cache) WaitingForName(s *Snapshot) []*Snapshot {
	return slices.DeleteFunc(c.ListByName(s.Pod.Namespace, s.Pod.Name), func(other *Snapshot) bool {
		return other.Pod.UID == s.Pod.UID || other.Syncs > 0
	})
}

// ListByName returns all pods with the name, including terminating ones and those that wait for the
// name.
func (c *Cache) ListByName(namespace, name string) (all []*Snapshot) {
	for _, s := range c.List() {
		if s.Pod.Namespace == namespace && s.Pod.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// Get returns the newest snapshot of a pod.
func (c *Cache) Get(uid types.UID) (*Snapshot, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s, ok := c.pods[uid]
	return s, ok
}

// Subscribe returns a channel that is readable after a change, and a function to unsubscribe.
func (c *Cache) Subscribe() (<-chan struct{}, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, ch := c.next, make(chan struct{}, 1)
	c.next++
	c.subscribers[id] = ch
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, id)
	}
}
