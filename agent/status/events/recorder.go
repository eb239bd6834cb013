package events

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// Bounds that EventsOptions may lower or raise.
const (
	DefaultMaxPerPod      = 100
	DefaultMaxBytesPerPod = 64 << 10
	DefaultRetention      = time.Hour
	DefaultMaxDeletedPods = 200
	// MaxMessageBytes is the longest message kept, in bytes, as the Kubernetes API
	// has it for events.
	MaxMessageBytes = 1024
)

// PodRef says which pod an event is about.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
}

// PodRefOf returns the Ref of a pod.
func PodRefOf(pod *corev1.Pod) PodRef {
	return PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// Event is one thing worth telling about a pod.
type Event struct {
	Type      string    // corev1.EventTypeNormal or EventTypeWarning; empty: Normal
	Reason    string    // CamelCase, as the Kubernetes documentation has it: Started, BackOff, …
	Message   string    // one sentence for the user, no secrets
	Container string    // its name; empty: the event is about the pod
	Init      bool      // Container is an init container
	Ephemeral bool      // Container is an ephemeral container
	At        time.Time // zero: now
}

func (e Event) fieldPath() string {
	switch {
	case e.Container == "":
		return ""
	case e.Init:
		return "spec.initContainers{" + e.Container + "}"
	case e.Ephemeral:
		return "spec.ephemeralContainers{" + e.Container + "}"
	}
	return "spec.containers{" + e.Container + "}"
}

// RecorderOptions is what NewEvents needs. Every zero field has a default.
type RecorderOptions struct {
	Now            func() time.Time // default time.Now
	Component      string           // source.component; default "kubelet", which tools filter by
	Host           string           // source.host: the node's name
	MaxPerPod      int              // events kept per pod
	MaxBytesPerPod int              // bytes of text kept per pod
	Retention      time.Duration    // how long a pod that is gone is remembered
	MaxDeletedPods int              // how many such pods are remembered at most
}

// Recorder remembers the events of the node's pods. It is safe for concurrent use.
type Recorder struct {
	opt RecorderOptions

	mu          sync.Mutex
	pods        map[types.UID]*podEvents
	subs        map[*Subscription]struct{}
	seq         uint64
	deletedPods int // pods with a gone time
}

// podEvents holds the events of one pod, oldest telling first.
type podEvents struct {
	ref       PodRef
	list      []*entry
	bytes     int
	deletedAt time.Time // zero: the pod is here
}

// entry is an event as it is kept: the text once, no Kubernetes object.
type entry struct {
	typ, reason, message, path string
	similarity                 uint64 // see likeness
	count                      int32
	first, last                time.Time
	id                         uint64 // of the first telling: its name
	version                    uint64 // of the last telling
}

func (e *entry) size() int { return len(e.reason) + len(e.message) + len(e.path) + 128 }

// NewRecorder returns an empty memory.
func NewRecorder(o RecorderOptions) *Recorder {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Component = cmp.Or(o.Component, "kubelet")
	o.MaxPerPod = cmp.Or(o.MaxPerPod, DefaultMaxPerPod)
	o.MaxBytesPerPod = cmp.Or(o.MaxBytesPerPod, DefaultMaxBytesPerPod)
	o.Retention = cmp.Or(o.Retention, DefaultRetention)
	o.MaxDeletedPods = cmp.Or(o.MaxDeletedPods, DefaultMaxDeletedPods)
	return &Recorder{opt: o, pods: map[types.UID]*podEvents{}, subs: map[*Subscription]struct{}{}}
}

// Record tells an event about a pod. The same type, reason, container and
// message as one that is kept raises that one's count, and so does a message that
// differs in IDs of the runtime only; the newest is kept. It never blocks.
func (e *Recorder) Record(ref PodRef, ev Event) {
	if ev.At.IsZero() {
		ev.At = e.opt.Now()
	}
	ev.Type = cmp.Or(ev.Type, corev1.EventTypeNormal)
	ev.Message = truncate(ev.Message, MaxMessageBytes)
	ev.Reason = truncate(ev.Reason, 128)

	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire(e.opt.Now())
	p := e.pods[ref.UID]
	if p == nil {
		p = &podEvents{ref: ref}
		e.pods[ref.UID] = p
	}
	e.seq++
	told := p.add(ev, e.seq)
	p.enforceLimits(e.opt.MaxPerPod, e.opt.MaxBytesPerPod)
	if len(e.subs) == 0 {
		return
	}
	out := e.object(p.ref, told)
	for s := range e.subs {
		s.offer(out)
	}
}

// add puts ev among the events of the pod and returns its entry, which is now
// the last of the list.
func (p *podEvents) add(ev Event, seq uint64) *entry {
	path, like := ev.fieldPath(), similarityHash(ev.Message)
	i := slices.IndexFunc(p.list, func(x *entry) bool {
		return x.reason == ev.Reason && x.typ == ev.Type && x.path == path && x.similarity == like
	})
	if i < 0 {
		x := &entry{typ: ev.Type, reason: ev.Reason, message: ev.Message, path: path, similarity: like,
			count: 1, first: ev.At, last: ev.At, id: seq, version: seq}
		p.list = append(p.list, x)
		p.bytes += x.size()
		return x
	}
	x := p.list[i]
	x.count++
	x.version = seq
	p.bytes += len(ev.Message) - len(x.message)
	x.message = ev.Message
	if ev.At.After(x.last) {
		x.last = ev.At
	}
	p.list = append(slices.Delete(p.list, i, i+1), x)
	return x
}

// minIDLength is the length from which on a row of hexadecimal digits is an ID that
// the runtime has drawn.
const minIDLength = 32

// similarityHash is a hash of a message without such IDs: a command that cannot be
// started has another one each time, and would else be another event each time.
func similarityHash(message string) uint64 {
	h := fnv.New64a()
	for rest := message; rest != ""; {
		n := 0
		for n < len(rest) && isHex(rest[n]) {
			n++
		}
		part := rest[:max(n, 1)]
		rest = rest[len(part):]
		if n >= minIDLength {
			part = "…"
		}
		_, _ = h.Write([]byte(part)) // a hash never fails
	}
	return h.Sum64()
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

// enforceLimits drops what was told longest ago. The newest always stays.
func (p *podEvents) enforceLimits(count, bytes int) {
	n := 0
	for len(p.list)-n > 1 && (len(p.list)-n > count || p.bytes > bytes) {
		p.bytes -= p.list[n].size()
		n++
	}
	p.list = slices.Delete(p.list, 0, n)
}

// List returns the events of one pod, the one told last at the end; nil: none.
func (e *Recorder) List(uid types.UID) []corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire(e.opt.Now())
	p := e.pods[uid]
	if p == nil {
		return nil
	}
	return e.objects(p)
}

// All returns the events of all pods, also of those gone within the retention,
// in the order in which they were told last.
func (e *Recorder) All() []corev1.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all()
}

func (e *Recorder) all() []corev1.Event {
	e.expire(e.opt.Now())
	type told struct {
		ref PodRef
		x   *entry
	}
	var list []told
	for _, p := range e.pods {
		for _, x := range p.list {
			list = append(list, told{p.ref, x})
		}
	}
	slices.SortFunc(list, func(a, b told) int { return cmp.Compare(a.x.version, b.x.version) })
	out := make([]corev1.Event, 0, len(list))
	for _, t := range list {
		out = append(out, e.object(t.ref, t.x))
	}
	return out
}

// PodDeleted says that nothing is left of a pod: its events stay for the retention,
// then they go. Telling something about it meanwhile does not prolong that.
func (e *Recorder) PodDeleted(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.opt.Now()
	if p := e.pods[uid]; p != nil && p.deletedAt.IsZero() {
		p.deletedAt = now
		e.deletedPods++
	}
	e.expire(now)
}

// expire drops pods gone for longer than the retention, and the longest gone
// beyond the bound.
func (e *Recorder) expire(now time.Time) {
	if e.deletedPods == 0 {
		return
	}
	var gone []*podEvents
	for uid, p := range e.pods {
		switch {
		case p.deletedAt.IsZero():
		case now.Sub(p.deletedAt) >= e.opt.Retention:
			delete(e.pods, uid)
			e.deletedPods--
		default:
			gone = append(gone, p)
		}
	}
	if len(gone) <= e.opt.MaxDeletedPods {
		return
	}
	slices.SortFunc(gone, func(a, b *podEvents) int { return a.deletedAt.Compare(b.deletedAt) })
	for _, p := range gone[:len(gone)-e.opt.MaxDeletedPods] {
		delete(e.pods, p.ref.UID)
		e.deletedPods--
	}
}

func (e *Recorder) objects(p *podEvents) []corev1.Event {
	out := make([]corev1.Event, 0, len(p.list))
	for _, x := range p.list {
		out = append(out, e.object(p.ref, x))
	}
	return out
}

// object makes the Kubernetes form. Its name is stable over repetitions, and
// its resource version grows with each.
func (e *Recorder) object(ref PodRef, x *entry) corev1.Event {
	h := fnv.New32a()
	_, _ = h.Write([]byte(ref.UID)) // a hash never fails
	return corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              fmt.Sprintf("%s.%08x%08x", ref.Name, h.Sum32(), x.id),
			Namespace:         ref.Namespace,
			UID:               types.UID(fmt.Sprintf("%s-%d", ref.UID, x.id)),
			ResourceVersion:   fmt.Sprint(x.version),
			CreationTimestamp: metav1.NewTime(x.first),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID, FieldPath: x.path,
		},
		Reason: x.reason, Message: x.message, Type: x.typ, Count: x.count,
		FirstTimestamp:      metav1.NewTime(x.first),
		LastTimestamp:       metav1.NewTime(x.last),
		Source:              corev1.EventSource{Component: e.opt.Component, Host: e.opt.Host},
		ReportingController: e.opt.Component,
		ReportingInstance:   e.opt.Host,
	}
}

// truncate shortens s to n bytes at a character's border and says that it did.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const cut = "…"
	n -= len(cut)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + cut
}

// EventFromReason is a reason as users are told it.
func EventFromReason(pod *corev1.Pod, r plan.Reason) Event {
	ev := Event{Type: r.EventType, Reason: r.Code, Message: r.Message}
	for i := range pod.Spec.InitContainers {
		ev.Init = ev.Init || pod.Spec.InitContainers[i].Name == r.Target
	}
	for i := range pod.Spec.EphemeralContainers {
		ev.Ephemeral = ev.Ephemeral || pod.Spec.EphemeralContainers[i].Name == r.Target
	}
	if podspec.FindContainer(pod, r.Target) != nil {
		ev.Container = r.Target
	}
	return ev
}
