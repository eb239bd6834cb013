package localworkloads

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/agent/status"
)

// Store is the local store.
type Store interface {
	PutNodeValues(values map[string][]byte)
	Flush(ctx context.Context) error
}

// Options configures a Source. All fields but Suspended are required.
type Options struct {
	Reconciler Config
	// Files is the source of the manifest files.
	Files interface {
		Run(ctx context.Context, emit func(source.Snapshot)) error
	}
	Store  Store
	Stored map[string][]byte // the values of the local store whose keys have Prefix
	// StoredEvents are the values whose keys have EventsPrefix. SaveEvents encodes the events of an object for the
	// local store, and RestoreEvents adds those of an earlier run.
	StoredEvents  map[string][]byte
	SaveEvents    func(types.UID) ([]byte, error)
	RestoreEvents func(ref corev1.ObjectReference, saved []byte) error
	// Watch calls handle with every pod and with every change of one, until ctx ends.
	Watch func(ctx context.Context, handle func(status.Event) error) error
	// Suspended reports that nothing is to be decided now, because the node shuts down. It may be nil.
	Suspended func() bool
	// NodeSuffix is appended to the names of pods, as to those of all file pods of a node that has joined an API
	// server. Empty: standalone.
	NodeSuffix string
	Log        *slog.Logger
}

// Prefix is the prefix of the keys of this package in the local store.
const Prefix = keyPrefix

// flushTimeout bounds how long pods wait for a disk that does not respond.
const flushTimeout = 2 * time.Second

// Source provides the pods of manifest files and those of the workloads of manifest files. It is safe for concurrent
// use.
type Source struct {
	opt  Options
	wake chan struct{} // the reconciler has to be synced; capacity 1

	mu         sync.Mutex
	reconciler *Reconciler // nil: there is no workload
	files      *source.Snapshot
	changes    chan struct{} // closed after a change of the workloads, and replaced
	pending    chan struct{} // closed when the edits so far are on disk; nil: there are none
	watch      func()        // starts the watch of the status cache, once

	// The last snapshot that was sent.
	sentFiles *source.Snapshot
	sentPods  []*corev1.Pod
	names     map[types.UID]*corev1.Pod
}

// NewSource returns a Source. The caller must call Run.
func NewSource(o Options) *Source {
	o.Reconciler.Joined = o.NodeSuffix != ""
	s := &Source{opt: o, wake: make(chan struct{}, 1), changes: make(chan struct{}), names: map[types.UID]*corev1.Pod{}}
	if len(o.Stored) > 0 {
		s.reconciler = New(o.Reconciler, o.Stored)
	}
	s.restoreEvents()
	s.opt.Stored, s.opt.StoredEvents = nil, nil
	return s
}

// Run sends the pods of files and workloads until ctx ends.
func (s *Source) Run(ctx context.Context, send func(source.Snapshot)) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s.watch = sync.OnceFunc(func() {
		watch.Go(func() { _ = s.opt.Watch(ctx, s.observe) }) // it ends with ctx only
	})
	snapshots := make(chan source.Snapshot)
	files := make(chan error, 1)
	watch.Go(func() {
		files <- s.opt.Files.Run(ctx, func(snap source.Snapshot) {
			select {
			case snapshots <- snap:
			case <-ctx.Done():
			}
		})
	})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-files:
			return err
		case snap := <-snapshots:
			s.setFiles(snap)
		case <-s.wake:
		case <-timer.C:
		}
		s.sync(ctx, send, timer)
	}
}

// setFiles uses a new snapshot of the files.
func (s *Source) setFiles(snap source.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files = &snap
	if s.reconciler == nil && len(snap.Workloads) > 0 {
		s.reconciler = New(s.opt.Reconciler, nil)
	}
	if s.reconciler != nil && snap.Ready {
		s.reconciler.SetFiles(snap.Workloads)
	}
}

// maxWait limits how long the timer runs, because the clock may be set or the host suspended.
const maxWait = time.Minute

// sync decides, persists the changes and sends the pods.
func (s *Source) sync(ctx context.Context, send func(source.Snapshot), timer *time.Timer) {
	s.mu.Lock()
	if s.files == nil {
		s.mu.Unlock()
		return
	}
	out := *s.files
	var changes map[string][]byte
	if s.reconciler != nil {
		s.watch()
		if s.opt.Suspended == nil || !s.opt.Suspended() {
			changes = s.reconciler.Sync(time.Now())
			s.saveEvents(changes)
			// While decisions are suspended, a time that has passed stays the next one.
			if wake := s.reconciler.Wake(); !wake.IsZero() {
				timer.Reset(min(max(time.Until(wake), time.Millisecond), maxWait))
			}
		}
		out.Pods = s.withPods(out.Pods)
		close(s.changes)
		s.changes = make(chan struct{})
	}
	unchanged := s.sentFiles == s.files && slices.Equal(s.sentPods, out.Pods)
	s.sentFiles, s.sentPods = s.files, out.Pods
	edits := s.pending
	s.pending = nil
	s.mu.Unlock()
	if edits != nil {
		defer close(edits)
	}
	if len(changes) > 0 {
		s.opt.Store.PutNodeValues(changes)
		flush, cancel := context.WithTimeout(ctx, flushTimeout)
		if err := s.opt.Store.Flush(flush); err != nil && ctx.Err() == nil {
			s.opt.Log.Warn("workloads are only in memory", "err", err)
		}
		cancel()
	}
	if !unchanged {
		send(out)
	}
}

// withPods returns the pods of files and of workloads, ordered by namespace and name.
func (s *Source) withPods(files []*corev1.Pod) []*corev1.Pod {
	out := slices.Clone(files)
	now := map[types.UID]*corev1.Pod{}
	for _, pod := range s.reconciler.Pods() {
		if s.opt.NodeSuffix != "" {
			pod = s.suffixed(pod)
		}
		now[pod.UID] = pod
		out = append(out, pod)
	}
	s.names = now
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

// suffixed returns a pod as a static pod of a node that has joined an API server. It has no owner there.
func (s *Source) suffixed(pod *corev1.Pod) *corev1.Pod {
	if before := s.names[pod.UID]; before != nil &&
		(before.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) {
		return before
	}
	out := pod.DeepCopy()
	out.Name += "-" + s.opt.NodeSuffix
	out.OwnerReferences = nil
	return out
}

// observe handles a change in the status cache.
func (s *Source) observe(e status.Event) error {
	snap := e.Added
	if snap == nil {
		snap = e.Modified
	}
	if snap == nil {
		return nil
	}
	s.mu.Lock()
	s.reconciler.PodObserved(snap.Object(), snap.At)
	s.mu.Unlock()
	s.trigger()
	return nil
}

// PodDeleted records that the agent has deleted a pod.
func (s *Source) PodDeleted(uid types.UID) {
	s.mu.Lock()
	running := s.reconciler != nil
	if running {
		s.reconciler.PodDeleted(uid, time.Now())
	}
	s.mu.Unlock()
	if running {
		s.trigger()
	}
}

func (s *Source) trigger() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Views returns the workloads, and a channel that is closed when they may have changed.
func (s *Source) Views() ([]View, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconciler == nil {
		return nil, s.changes
	}
	return s.reconciler.Views(), s.changes
}

// Edit executes a command on a workload. It returns when the change is on disk, or is only in memory because the disk
// does not respond, and its effect is on its way.
func (s *Source) Edit(ctx context.Context, change func(e *Reconciler, now time.Time) error) error {
	done, err := s.edit(change)
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// edit executes a command and returns a channel that is closed after the next sync.
func (s *Source) edit(change func(e *Reconciler, now time.Time) error) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reconciler == nil {
		return nil, apierrors.NewBadRequest("no file defines a workload")
	}
	if s.reconciler.files == nil {
		return nil, apierrors.NewServiceUnavailable("the manifest files have not been read yet")
	}
	if s.opt.Suspended != nil && s.opt.Suspended() {
		return nil, apierrors.NewServiceUnavailable("the node shuts down")
	}
	if err := change(s.reconciler, time.Now()); err != nil {
		return nil, err
	}
	if s.pending == nil {
		s.pending = make(chan struct{})
	}
	s.trigger()
	return s.pending, nil
}
