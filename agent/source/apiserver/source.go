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

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
	"berth/services"
	"berth/services/policy"
)

// Options configures a Source. Client and NodeName are required.
type Options struct {
	Client       *apiclient.Client
	NodeName     string
	PreviousPods []PreviousPod // pods of the agent's previous run
	Log          *slog.Logger
	Now          func() time.Time // default time.Now

	// NodeRegistered is closed when the node is registered. Before that no new pod is emitted. nil:
	// the node is registered.
	NodeRegistered <-chan struct{}
	// NameUnique is closed when no other machine appears to use the node's name. Before that, and
	// while the server is reachable, pods of the previous run are not emitted either, because they
	// may run on another machine. nil: the name is unique.
	NameUnique <-chan struct{}

	// Services receives the Services of the cluster, and its EndpointSlices when EndpointsNeeded is
	// closed. nil: they are not needed.
	Services *services.Store
	// EndpointsNeeded is closed when EndpointSlices are needed. Nodes of other control planes are not
	// authorized to read them by default. nil: never.
	EndpointsNeeded <-chan struct{}
	// Policies receives the NetworkPolicies of the cluster when PoliciesNeeded has a value. When there is
	// a policy, it also receives the addresses that policies select if the value is true, and otherwise
	// the pods and namespaces of the cluster. PoliciesNeeded is nil if they are not needed.
	Policies       *policy.Store
	PoliciesNeeded <-chan bool
	// ServicesBeforePods delays pods until the Services are known, for a second at most, because one of
	// them has the address of the cluster's DNS.
	ServicesBeforePods bool

	// OnPod is called with every pod of this node as the server has it, including its status and
	// mirror pods. deleted reports that the pod was deleted. It may be nil.
	OnPod func(pod *corev1.Pod, deleted bool)
}

// PreviousPod is a pod of the previous run with the objects that it uses.
type PreviousPod struct {
	Pod     *corev1.Pod
	Objects plan.Objects
}

// AssignedPods returns the persisted pods that the API server had assigned to this node.
func AssignedPods(records map[types.UID]checkpoint.Record) (out []PreviousPod) {
	for _, r := range records {
		if r.Pod != nil && podspec.FromAPIServer(r.Pod) {
			out = append(out, PreviousPod{Pod: r.Pod, Objects: r.Objects})
		}
	}
	return out
}

const (
	objectTimeout = time.Second     // after which an unresolved object is reported as an error
	serverTimeout = 2 * time.Second // wait for the server before pods of the previous run are emitted
)

// Source is the source of the pods that an API server has bound to the node.
type Source struct {
	opt   Options
	calls chan func()
	emit  func(source.Snapshot)

	// Owned by Run.
	ctx              context.Context
	wg               sync.WaitGroup
	listed           bool // the server has listed all pods
	nodeRegistered   bool // see Options.NodeRegistered
	nameUnique       bool // see Options.NameUnique
	waitExpired      bool // serverTimeout is over
	previousRestored bool // pods of the previous run are emitted
	pods             map[types.UID]*trackedPod
	objects          map[source.ObjectKey]*object
	services         serviceCache
	classes          map[string]string // handlers by name; nil: not listed yet
	dirty            bool

	handlers atomic.Pointer[map[string]string] // published copy of classes
}

// trackedPod is a desired pod.
type trackedPod struct {
	pod        *corev1.Pod
	previous   bool // of the previous run
	emitted    bool // it was in a Snapshot
	references []source.ObjectKey
}

// New returns a Source. Run starts it.
func New(o Options) *Source {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Services == nil {
		o.Services = services.NewStore()
	}
	if o.OnPod == nil {
		o.OnPod = func(*corev1.Pod, bool) {}
	}
	s := &Source{
		opt: o, calls: make(chan func(), 64), pods: map[types.UID]*trackedPod{},
		objects: map[source.ObjectKey]*object{},
	}
	classes := previousRuntimeClasses(o.PreviousPods)
	s.handlers.Store(&classes)
	return s
}

// Run watches the server until ctx ends. It calls emit with every new Snapshot, always from its own
// goroutine.
func (s *Source) Run(ctx context.Context, emit func(source.Snapshot)) error {
	ctx, stop := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer stop()
	s.ctx, s.emit = ctx, emit
	s.watchPods()
	s.watchServices()
	s.wg.Go(s.watchEndpointSlices)
	s.wg.Go(s.watchPolicies)
	s.watchRuntimeClasses()
	serverTimer := time.NewTimer(serverTimeout)
	defer serverTimer.Stop()
	node, unique := s.opt.NodeRegistered, s.opt.NameUnique
	s.nodeRegistered, s.nameUnique = node == nil, unique == nil
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.calls:
			f()
			for more := true; more; { // pending calls belong to the same change
				select {
				case f := <-s.calls:
					f()
				default:
					more = false
				}
			}
		case <-node:
			node, s.nodeRegistered, s.dirty = nil, true, true
		case <-unique:
			unique, s.nameUnique = nil, true
			s.restorePrevious()
		case <-serverTimer.C:
			s.waitExpired = true
			s.restorePrevious()
		case <-wake.C:
		}
		if next := s.step(); !next.IsZero() {
			wake.Reset(max(0, next.Sub(s.opt.Now())))
		}
	}
}

// do runs f on the goroutine of Run.
func (s *Source) do(f func()) {
	select {
	case s.calls <- f:
	case <-s.ctx.Done():
	}
}

// step does what is due and emits a Snapshot if something has changed. It returns when more is due.
func (s *Source) step() (next time.Time) {
	now := s.opt.Now()
	sooner := func(at time.Time) {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for key, u := range s.objects {
		sooner(s.renew(u, now))
		if !u.resolved {
			if due := u.since.Add(objectTimeout); now.Before(due) {
				sooner(due)
			} else {
				u.resolved, s.dirty = true, true
				u.value = plan.Object{Version: plan.Version{Err: u.errorMessage(key)}}
			}
		}
	}
	if s.dirty && (s.complete() || s.previousRestored) {
		s.dirty = false
		s.emit(s.snapshot())
	}
	return next
}

// complete reports whether the Snapshot is complete.
func (s *Source) complete() bool { return s.listed && s.nodeRegistered }

func (s *Source) snapshot() source.Snapshot {
	pending := map[types.UID]bool{}
	out := source.Snapshot{
		Source:  source.APIServer,
		Ready:   s.complete(),
		Pending: pending,
		Objects: make(map[source.ObjectKey]plan.Object, len(s.objects)),
	}
	for _, h := range s.pods {
		if !s.nodeRegistered && !h.previous {
			pending[h.pod.UID] = true
			continue
		}
		h.emitted = h.emitted ||
			!slices.ContainsFunc(
				h.references,
				func(key source.ObjectKey) bool { return !s.objects[key].resolved && s.requiredForSandbox(h.pod, key) },
			)
		if h.emitted {
			out.Pods = append(out.Pods, h.pod)
		} else {
			pending[h.pod.UID] = true
		}
	}
	slices.SortFunc(out.Pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	for key, u := range s.objects {
		out.Objects[key] = u.value
		if !u.resolved {
			out.Objects[key] = plan.Object{Version: plan.Version{Pending: true}}
		}
	}
	return out
}

// requiredForSandbox reports whether the sandbox or the images of a pod need an object.
func (s *Source) requiredForSandbox(pod *corev1.Pod, key source.ObjectKey) bool {
	switch key.Kind {
	case plan.RuntimeClass:
		return true
	case plan.Services:
		return s.opt.ServicesBeforePods
	case plan.Secret:
		return slices.ContainsFunc(
			pod.Spec.ImagePullSecrets,
			func(r corev1.LocalObjectReference) bool { return r.Name == key.Name },
		)
	default:
		return false
	}
}

// watchPods watches the pods of this node.
func (s *Source) watchPods() {
	failed := false
	s.watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.Pods, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", s.opt.NodeName),
		OnReplace: func(list []runtime.Object) {
			s.do(func() {
				if failed {
					s.opt.Log.Info("pod watch recovered", "pods", len(list))
				}
				failed = false
				s.synced(list)
			})
		},
		OnUpdate: func(o runtime.Object) {
			if pod, ok := o.(*corev1.Pod); ok { // nothing else is watched
				s.do(func() { s.put(pod) })
			}
		},
		OnDelete: func(o runtime.Object) {
			if pod, ok := o.(*corev1.Pod); ok {
				s.do(func() { s.remove(pod) })
			}
		},
		OnError: func(err error) {
			s.do(func() {
				if !failed {
					s.opt.Log.Warn("pod watch failed, running pods are unaffected", "err", err)
				}
				failed = true
				s.restorePrevious()
			})
		},
	})
}

// watch runs a watch until ctx ends.
func (s *Source) watch(ctx context.Context, f apiclient.WatchOptions) {
	s.wg.Go(func() { s.opt.Client.Watch(ctx, f) })
}

// restorePrevious emits the pods of the previous run until the desired state is complete. A server
// that is reachable while the node is not registered delays this for a while.
func (s *Source) restorePrevious() {
	if s.previousRestored || s.complete() || s.listed && !(s.waitExpired && s.nameUnique) {
		return
	}
	s.previousRestored, s.dirty = true, true
	for _, k := range s.opt.PreviousPods {
		s.track(k.Pod, k.Objects)
		h := s.pods[k.Pod.UID]
		h.previous, h.emitted = true, true
	}
	s.opt.PreviousPods = nil
}

// synced replaces all pods by the list of the server.
func (s *Source) synced(list []runtime.Object) {
	now := make(map[types.UID]bool, len(list))
	known := map[types.UID]plan.Objects{}
	for _, k := range s.opt.PreviousPods { // their objects serve until the server has sent them
		known[k.Pod.UID] = k.Objects
	}
	s.opt.PreviousPods = nil
	for _, o := range list {
		if pod, ok := o.(*corev1.Pod); ok {
			now[pod.UID] = true
			objects, was := known[pod.UID]
			s.update(pod, objects)
			if h := s.pods[pod.UID]; h != nil && was {
				h.previous = true
			}
		}
	}
	for _, h := range slices.Collect(maps.Values(s.pods)) {
		if !now[h.pod.UID] {
			s.remove(h.pod)
		}
	}
	s.listed, s.dirty = true, true
}

func (s *Source) put(pod *corev1.Pod) { s.update(pod, nil) }

func (s *Source) update(pod *corev1.Pod, known plan.Objects) {
	s.opt.OnPod(pod, false)
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return
	}
	s.track(normalize(pod), known)
}

// track adds or updates a pod and the watches of its objects.
func (s *Source) track(pod *corev1.Pod, known plan.Objects) {
	h := s.pods[pod.UID]
	switch {
	case h == nil:
		h = &trackedPod{}
		s.pods[pod.UID] = h
	case sameDesired(h.pod, pod):
		s.setReferences(h, keysOf(h.pod, pod.Status.Phase), nil)
		return
	}
	h.pod, s.dirty = pod, true
	s.setReferences(h, keysOf(pod, pod.Status.Phase), known)
}

func (s *Source) remove(pod *corev1.Pod) {
	s.opt.OnPod(pod, true)
	if h := s.pods[pod.UID]; h != nil {
		delete(s.pods, pod.UID)
		s.setReferences(h, nil, nil)
		s.dirty = true
	}
}
