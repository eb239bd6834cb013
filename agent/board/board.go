package board

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

// Snapshot is one pod after one pass. Immutable: ps, why, describe, metrics and
// eviction read it while the worker goes on.
type Snapshot struct {
	At      time.Time
	Pod     *corev1.Pod
	End     *plan.End
	Verdict plan.Verdict
	Status  corev1.PodStatus
	Seen    plan.Observed
	Refs    map[plan.Ref]plan.Version
	Busy    []Work
	Failed  map[plan.OpKey]plan.Failure
	Why     []Told
	Memory  plan.Memory // read-only: the next pass is given the same
	Passes  int64
	Wake    time.Time
}

// Work is an action under way.
type Work struct {
	Action plan.Action
	Since  time.Time
}

// Told is a decision and when it was first made.
type Told struct {
	plan.Reason
	Since time.Time
}

// Object returns the pod as users see it: the wish with its status.
func (s *Snapshot) Object() *corev1.Pod {
	pod := *s.Pod
	pod.Status = s.Status
	if s.End != nil && s.End.Forget && pod.DeletionTimestamp == nil {
		meta := pod.ObjectMeta.DeepCopy()
		at := s.End.At.Add(s.End.Grace)
		grace := int64(s.End.Grace / time.Second)
		meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = &metav1.Time{Time: at}, &grace
		pod.ObjectMeta = *meta
	}
	return &pod
}

// Board holds the newest snapshot of every pod.
type Board struct {
	mu    sync.RWMutex
	pods  map[types.UID]*Snapshot
	watch map[int]chan struct{}
	next  int
}

// New returns an empty board.
func New() *Board {
	return &Board{pods: map[types.UID]*Snapshot{}, watch: map[int]chan struct{}{}}
}

// Put replaces a pod's snapshot. It rings only if there is something new in it.
func (b *Board) Put(s *Snapshot) {
	was, _ := b.Get(s.Pod.UID)
	news := was == nil || !sameNews(*was, *s)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[s.Pod.UID] = s
	if news {
		b.ring()
	}
}

// sameNews reports whether two snapshots differ in nothing but the passes that
// made them.
func sameNews(a, b Snapshot) bool {
	a.At, a.Passes, a.Wake = b.At, b.Passes, b.Wake
	return reflect.DeepEqual(a, b)
}

// Remove takes a pod that is gone off the board.
func (b *Board) Remove(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
	b.ring()
}

func (b *Board) ring() {
	for _, c := range b.watch {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// All returns the newest snapshots, ordered by namespace and name.
func (b *Board) All() []*Snapshot {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.SortedFunc(maps.Values(b.pods), func(x, y *Snapshot) int {
		return cmp.Or(cmp.Compare(x.Pod.Namespace, y.Pod.Namespace), cmp.Compare(x.Pod.Name, y.Pod.Name), cmp.Compare(x.Pod.UID, y.Pod.UID))
	})
}

// Find returns the pod of that name: of two the one that has it, not one that
// waits for it; then the one that is wished, not one that ends.
func (b *Board) Find(namespace, name string) (*Snapshot, bool) {
	var found *Snapshot
	for _, s := range b.Named(namespace, name) {
		has, had := s.Passes > 0, found != nil && found.Passes > 0
		if found == nil || has && !had || has == had && s.End == nil {
			found = s
		}
	}
	return found, found != nil
}

// Named returns all pods of that name: one that ends or has it, one that waits.
func (b *Board) Named(namespace, name string) (all []*Snapshot) {
	for _, s := range b.All() {
		if s.Pod.Namespace == namespace && s.Pod.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// Get returns the newest snapshot of a pod.
func (b *Board) Get(uid types.UID) (*Snapshot, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	s, ok := b.pods[uid]
	return s, ok
}

// Changes returns a channel that is readable after the board has changed, and
// a function to give it back.
func (b *Board) Changes() (<-chan struct{}, func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, c := b.next, make(chan struct{}, 1)
	b.next++
	b.watch[id] = c
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.watch, id)
	}
}
