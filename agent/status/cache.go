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

// looksLike reports whether users see the same pod in another snapshot of it.
func (s *Snapshot) looksLike(other *Snapshot) bool {
	return s.Pod == other.Pod && reflect.DeepEqual(s.End, other.End) && reflect.DeepEqual(&s.Status, &other.Status)
}

// compare orders by namespace and name.
func (s *Snapshot) compare(other *Snapshot) int {
	x, y := s.Pod, other.Pod
	return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
}

// Board holds the newest snapshot of every pod.
type Board struct {
	// Tap hears of every snapshot that is put, and with gone of the last one of a
	// pod that is removed. It is set before the first and must not block.
	Tap func(s *Snapshot, gone bool)

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
	news := was == nil || !sameNews(was, s)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[s.Pod.UID] = s
	if news {
		b.ring()
	}
	if news && b.Tap != nil {
		b.Tap(s, false)
	}
}

// sameNews reports whether two snapshots differ in nothing but the passes that
// made them: At, Passes and Wake. Nothing is copied: it is asked in every pass.
func sameNews(a, b *Snapshot) bool {
	return a.Verdict == b.Verdict && a.Pod == b.Pod && maps.Equal(a.Refs, b.Refs) &&
		reflect.DeepEqual(&a.Status, &b.Status) && reflect.DeepEqual(&a.Seen, &b.Seen) &&
		reflect.DeepEqual(a.Busy, b.Busy) && reflect.DeepEqual(a.Failed, b.Failed) && reflect.DeepEqual(a.Why, b.Why) &&
		reflect.DeepEqual(a.End, b.End) && reflect.DeepEqual(&a.Memory, &b.Memory)
}

// Remove takes a pod that is gone off the board.
func (b *Board) Remove(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, there := b.pods[uid]; there && b.Tap != nil {
		b.Tap(s, true)
	}
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
	return slices.SortedFunc(maps.Values(b.pods), (*Snapshot).compare)
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
