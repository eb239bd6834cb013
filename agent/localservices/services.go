package localservices

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/agent/status"
	"berth/services"
)

// Prefix is the prefix of the keys of this package in the local store.
const Prefix = "local-service/"

// Options configures a Services. All fields but Node are required.
type Options struct {
	NodeName string
	// Range is the range of cluster IPs.
	Range netip.Prefix
	// Node has the addresses of Services of type LoadBalancer.
	Node Node
	// Services receives the Services and their endpoints.
	Services *services.Store
	// Put stores values by key; nil deletes the key. Stored are the values with Prefix.
	Put    func(values map[string][]byte)
	Stored map[string][]byte
	// Record records an event of a Service. Created and Deleted are called with the UID of a Service of a
	// file, under which its events are, when the file defines it and no longer defines it.
	Record           func(ref corev1.ObjectReference, reason, message string)
	Created, Deleted func(types.UID)
	// Watch calls handle with every pod and with every change of one, until ctx ends.
	Watch func(ctx context.Context, handle func(status.Event) error) error
	Log   *slog.Logger
}

// Services are the Services of manifest files. It is safe for concurrent use.
type Services struct {
	opt  Options
	wake chan struct{} // capacity 1

	mu       sync.Mutex
	files    []*corev1.Service
	ready    bool // the files were read completely once
	listed   bool // the pods of the start are known
	pods     map[types.UID]*corev1.Pod
	stored   map[services.Name]Allocation
	problems map[services.Name]Problem // as recorded last
	defined  map[services.Name]bool    // as reported to Created and Deleted
}

// New returns Services. The caller must call Run.
func New(o Options) *Services {
	s := &Services{
		opt: o, wake: make(chan struct{}, 1), pods: map[types.UID]*corev1.Pod{},
		stored: map[services.Name]Allocation{}, problems: map[services.Name]Problem{},
		defined: map[services.Name]bool{},
	}
	for key, value := range o.Stored {
		var v storedAllocation
		if err := json.Unmarshal(value, &v); err != nil {
			o.Log.Warn("stored address of a Service is unreadable, another one may be assigned", "key", key, "err", err)
			continue
		}
		s.stored[v.Name] = v.Allocation
	}
	s.opt.Stored = nil
	return s
}

// storedAllocation is the value of a Service in the local store.
type storedAllocation struct {
	services.Name
	Allocation
}

// SetFiles uses the Services of a snapshot of the files. It returns the snapshot with the
// environment variables that the Services define for its pods.
func (s *Services) SetFiles(snap source.Snapshot) source.Snapshot {
	s.mu.Lock()
	s.files, s.ready = snap.Services, s.ready || snap.Ready
	got, _ := Allocate(s.files, s.stored, s.opt.Range, s.opt.Node)
	if s.ready {
		s.persist(got) // a pod may start with these addresses
	}
	s.mu.Unlock()
	s.trigger()
	return withEnvironment(snap, got)
}

// Problems returns why Services of files could not get the addresses or ports that they request.
func (s *Services) Problems() map[services.Name]Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.problems)
}

func (s *Services) trigger() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run keeps the store up to date until ctx ends.
func (s *Services) Run(ctx context.Context) error {
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() { _ = s.opt.Watch(ctx, s.observe) }) // it ends with ctx only
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.sync()
		}
	}
}

// observe handles a change of a pod.
func (s *Services) observe(e status.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Added != nil:
		s.pods[e.Added.Pod.UID] = e.Added.Object()
	case e.Modified != nil:
		s.pods[e.Modified.Pod.UID] = e.Modified.Object()
	case e.Deleted != nil:
		delete(s.pods, e.Deleted.Pod.UID)
	case e.Synced:
		s.listed = true
	}
	if s.listed && len(s.files) > 0 || e.Synced {
		s.trigger()
	}
	return nil
}

// sync writes the Services and their endpoints to the store. Before the files and the pods are known, the
// store keeps what an earlier process has left there.
func (s *Services) sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || !s.listed {
		return
	}
	got, problems := Allocate(s.files, s.stored, s.opt.Range, s.opt.Node)
	s.persist(got)
	s.report(problems)
	pods := slices.SortedFunc(maps.Values(s.pods), func(a, b *corev1.Pod) int {
		return services.Name{Namespace: a.Namespace, Name: a.Name}.Compare(services.Name{Namespace: b.Namespace,
			Name: b.Name})
	})
	var all []*services.Service
	var endpoints []*services.Slice
	for _, svc := range s.files {
		if a, ok := got[nameOf(svc)]; ok {
			all = append(all, compact(svc, a))
			endpoints = append(endpoints, Endpoints(svc, pods, s.opt.NodeName)...)
		}
	}
	s.opt.Services.ReplaceServices(all)
	s.opt.Services.ReplaceSlices(endpoints)
}

// report logs and records new problems. The caller holds the lock.
func (s *Services) report(problems map[services.Name]Problem) {
	now := make(map[services.Name]bool, len(s.files))
	for _, svc := range s.files {
		name := nameOf(svc)
		if now[name] = true; !s.defined[name] {
			s.opt.Created(uidOf(name))
		}
		p, bad := problems[name]
		switch before, was := s.problems[name]; {
		case bad && p != before:
			if p.Routed {
				s.opt.Log.Warn("service of a file has no load balancer address", "service", name, "reason", p.Reason,
					"err", p.Message)
			} else {
				s.opt.Log.Warn("service of a file not routed", "service", name, "reason", p.Reason, "err", p.Message)
			}
			s.opt.Record(reference(name), p.Reason, p.Message)
		case was && !bad:
			s.opt.Log.Info("service of a file routed", "service", name)
		}
	}
	for name := range s.defined {
		if !now[name] {
			s.opt.Deleted(uidOf(name))
		}
	}
	s.problems, s.defined = problems, now
}

// uidOf returns the UID under which events of a Service of a file are recorded.
func uidOf(name services.Name) types.UID { return types.UID("service-" + name.String()) }

func reference(name services.Name) corev1.ObjectReference {
	return corev1.ObjectReference{
		Kind: "Service", APIVersion: "v1", Namespace: name.Namespace, Name: name.Name, UID: uidOf(name),
	}
}

// persist stores new assignments, and removes those of Services that no longer exist.
func (s *Services) persist(got map[services.Name]Allocation) {
	values := map[string][]byte{}
	for name, a := range got {
		if old, ok := s.stored[name]; ok && old.equal(a) {
			continue
		}
		value, err := json.Marshal(storedAllocation{name, a})
		if err != nil {
			panic("localservices: encode an allocation: " + err.Error()) // plain data: a bug
		}
		values[Prefix+name.String()] = value
	}
	for name := range s.stored {
		if _, ok := got[name]; !ok {
			values[Prefix+name.String()] = nil
		}
	}
	if len(values) > 0 {
		s.opt.Put(values)
	}
	s.stored = got
}

// Ignored reports the Services of manifest files that have no effect, because the node has joined a server.
type Ignored struct {
	names []string // of the last report
}

// Report logs the Services of a snapshot, unless they are the same as in the snapshot before.
func (i *Ignored) Report(snap source.Snapshot, log *slog.Logger) {
	names := make([]string, 0, len(snap.Services)) // sorted, as the snapshot is
	for _, svc := range snap.Services {
		names = append(names, svc.Namespace+"/"+svc.Name)
	}
	if slices.Equal(names, i.names) {
		return
	}
	if i.names = names; len(names) > 0 {
		log.Warn("services of manifest files ignored: the node has joined a server", "services",
			strings.Join(names, ", "))
	}
}
