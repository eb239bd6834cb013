package apiserver

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// Options is what New needs.
type Options struct {
	Client   *apiclient.Client
	NodeName string
	Known    []Known // pods of the agent's last life
	Log      *slog.Logger
	Now      func() time.Time // default time.Now

	// Node is closed when it is known what the node is to the server: before that
	// no pod is told that the agent did not know. Nil: it is.
	Node <-chan struct{}
	// Alone is closed when no other machine is alive under the node's name, as far as
	// anybody can tell: before that a server that answers keeps back the pods of the
	// last life, too, which may be another's by now. Nil: none is.
	Alone <-chan struct{}

	// Heard is told every pod of this node as the server has it, with its status,
	// mirror pods too; gone: there is none of that UID any more. May be nil.
	Heard func(pod *corev1.Pod, gone bool)
}

// Known is a pod as it was last known, with what it uses.
type Known struct {
	Pod     *corev1.Pod
	Objects plan.Objects
}

const (
	late     = time.Second     // after which an answer that does not come is an answer
	patience = 2 * time.Second // for the server, before the pods of the last life are told
)

// Source tells what a server wants of this node.
type Source struct {
	opt   Options
	calls chan func()
	tell  func(source.Snapshot)

	// Of Run alone.
	ctx      context.Context
	wg       sync.WaitGroup
	ready    bool // the server has told all pods
	open     bool // see Options.Node
	alone    bool // see Options.Alone
	waited   bool // for as long as there is patience
	recalled bool // those of the last life are told
	pods     map[types.UID]*held
	used     map[source.ObjectKey]*used
	services services
	classes  map[string]string // handlers by name; nil: not read yet
	dirty    bool

	handlers atomic.Pointer[map[string]string] // what others see of classes
}

// held is a pod that is wanted.
type held struct {
	pod   *corev1.Pod
	known bool // of the last life
	told  bool // it was in a Snapshot
	uses  []source.ObjectKey
}

// New returns a source that has asked nothing yet.
func New(o Options) *Source {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Heard == nil {
		o.Heard = func(*corev1.Pod, bool) {}
	}
	s := &Source{
		opt: o, calls: make(chan func(), 64), pods: map[types.UID]*held{}, used: map[source.ObjectKey]*used{},
		services: services{all: map[types.NamespacedName]*corev1.Service{}},
	}
	classes := knownClasses(o.Known)
	s.handlers.Store(&classes)
	return s
}

// Run follows the server until ctx ends. It calls tell, always from this
// goroutine, with every new Snapshot.
func (s *Source) Run(ctx context.Context, tell func(source.Snapshot)) error {
	ctx, stop := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer stop()
	s.ctx, s.tell = ctx, tell
	s.followPods()
	s.followServices()
	s.followClasses()
	away := time.NewTimer(patience)
	defer away.Stop()
	node, alone := s.opt.Node, s.opt.Alone
	s.open, s.alone = node == nil, alone == nil
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.calls:
			f()
			for more := true; more; { // what else is there belongs to the same change
				select {
				case f := <-s.calls:
					f()
				default:
					more = false
				}
			}
		case <-node:
			node, s.open, s.dirty = nil, true, true
		case <-alone:
			alone, s.alone = nil, true
			s.recall()
		case <-away.C:
			s.waited = true
			s.recall()
		case <-wake.C:
		}
		if next := s.step(); !next.IsZero() {
			wake.Reset(max(0, next.Sub(s.opt.Now())))
		}
	}
}

// do runs f on Run's goroutine.
func (s *Source) do(f func()) {
	select {
	case s.calls <- f:
	case <-s.ctx.Done():
	}
}

// step does what is due and tells what has changed. It returns when more is due.
func (s *Source) step() (next time.Time) {
	now := s.opt.Now()
	sooner := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for key, u := range s.used {
		sooner(s.renew(u, now))
		if !u.heard {
			if due := u.since.Add(late); now.Before(due) {
				sooner(due)
			} else {
				u.heard, s.dirty = true, true
				u.object = plan.Object{Version: plan.Version{Err: u.complaint(key)}}
			}
		}
	}
	if s.dirty && (s.full() || s.recalled) {
		s.dirty = false
		s.tell(s.snapshot())
	}
	return next
}

// full reports whether all that the server wants may be told.
func (s *Source) full() bool { return s.ready && s.open }

func (s *Source) snapshot() source.Snapshot {
	out := source.Snapshot{Source: source.Server, Ready: s.full(), Objects: make(map[source.ObjectKey]plan.Object, len(s.used))}
	for _, h := range s.pods {
		if !s.open && !h.known {
			continue
		}
		h.told = h.told || !slices.ContainsFunc(h.uses, func(key source.ObjectKey) bool { return !s.used[key].heard && first(h.pod, key) })
		if h.told {
			out.Pods = append(out.Pods, h.pod)
		}
	}
	slices.SortFunc(out.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	for key, u := range s.used {
		out.Objects[key] = u.object
		if !u.heard {
			out.Objects[key] = plan.Object{Version: plan.Version{Late: true}}
		}
	}
	return out
}

// first reports whether a pod's sandbox or its images need an object: nothing of
// the pod can begin without it.
func first(pod *corev1.Pod, key source.ObjectKey) bool {
	switch key.Kind {
	case plan.RuntimeClass:
		return true
	case plan.Secret:
		return slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return r.Name == key.Name })
	default:
		return false
	}
}

// followPods follows the pods of this node.
func (s *Source) followPods() {
	failed := false
	s.follow(s.ctx, apiclient.Followed{
		Resource: apiclient.Pods, Select: fields.OneTermEqualSelector("spec.nodeName", s.opt.NodeName),
		All: func(list []runtime.Object) {
			s.do(func() {
				if failed {
					s.opt.Log.Info("The server tells this node's pods again", "pods", len(list))
				}
				failed = false
				s.synced(list)
			})
		},
		Put: func(o runtime.Object) {
			if pod, ok := o.(*corev1.Pod); ok { // nothing else is followed
				s.do(func() { s.put(pod) })
			}
		},
		Drop: func(o runtime.Object) {
			if pod, ok := o.(*corev1.Pod); ok {
				s.do(func() { s.drop(pod) })
			}
		},
		Failed: func(err error) {
			s.do(func() {
				if !failed {
					s.opt.Log.Warn("The server does not tell this node's pods; those that are here go on", "err", err)
				}
				failed = true
				s.recall()
			})
		},
	})
}

// follow runs a follower until ctx ends.
func (s *Source) follow(ctx context.Context, f apiclient.Followed) {
	s.wg.Go(func() { s.opt.Client.Follow(ctx, f) })
}

// recall takes up the pods of the agent's last life, until all is told that the
// server wants. One that answers and yet does not tell the node is waited for, for
// a while.
func (s *Source) recall() {
	if s.recalled || s.full() || s.ready && !(s.waited && s.alone) {
		return
	}
	s.recalled, s.dirty = true, true
	for _, k := range s.opt.Known {
		s.hold(k.Pod, k.Objects)
		h := s.pods[k.Pod.UID]
		h.known, h.told = true, true
	}
	s.opt.Known = nil
}

// synced takes in all pods that the server has of this node.
func (s *Source) synced(list []runtime.Object) {
	now := make(map[types.UID]bool, len(list))
	known := map[types.UID]plan.Objects{}
	for _, k := range s.opt.Known { // what they used serves until the server has answered
		known[k.Pod.UID] = k.Objects
	}
	s.opt.Known = nil
	for _, o := range list {
		if pod, ok := o.(*corev1.Pod); ok {
			now[pod.UID] = true
			objects, was := known[pod.UID]
			s.heard(pod, objects)
			if h := s.pods[pod.UID]; h != nil && was {
				h.known = true
			}
		}
	}
	for _, h := range slices.Collect(maps.Values(s.pods)) {
		if !now[h.pod.UID] {
			s.drop(h.pod)
		}
	}
	s.ready, s.dirty = true, true
}

func (s *Source) put(pod *corev1.Pod) { s.heard(pod, nil) }

func (s *Source) heard(pod *corev1.Pod, known plan.Objects) {
	s.opt.Heard(pod, false)
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return
	}
	s.hold(normal(pod), known)
}

// hold takes a pod in, new or changed, and sees to it that what it uses is
// followed.
func (s *Source) hold(pod *corev1.Pod, known plan.Objects) {
	h := s.pods[pod.UID]
	switch {
	case h == nil:
		h = &held{}
		s.pods[pod.UID] = h
	case sameWish(h.pod, pod):
		s.use(h, keysOf(h.pod, pod.Status.Phase), nil)
		return
	}
	h.pod, s.dirty = pod, true
	s.use(h, keysOf(pod, pod.Status.Phase), known)
}

func (s *Source) drop(pod *corev1.Pod) {
	s.opt.Heard(pod, true)
	if h := s.pods[pod.UID]; h != nil {
		delete(s.pods, pod.UID)
		s.use(h, nil, nil)
		s.dirty = true
	}
}
