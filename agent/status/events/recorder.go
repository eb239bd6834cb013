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

// Defaults of RecorderOptions.
const (
	DefaultMaxPerPod      = 100
	DefaultMaxBytesPerPod = 64 << 10
	DefaultRetention      = time.Hour
	DefaultMaxDeletedPods = 200
	// MaxMessageBytes is the limit of the Kubernetes API for the message of an event.
	MaxMessageBytes = 1024
)

// PodRef references the pod of an event, or the workload that it belongs to.
type PodRef struct {
	Namespace, Name string
	UID             types.UID
	// Kind and APIVersion are empty for a pod.
	Kind, APIVersion string
}

// PodRefOf returns the PodRef of a pod.
func PodRefOf(pod *corev1.Pod) PodRef {
	return PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
}

// Event is an event of a pod.
type Event struct {
	Type      string    // default corev1.EventTypeNormal
	Reason    string    // CamelCase, as in Kubernetes: Started, BackOff, …
	Message   string    // one sentence for the user, without secrets
	Container string    // container name, empty: the event is about the pod
	Init      bool      // Container is an init container
	Ephemeral bool      // Container is an ephemeral container
	At        time.Time // default now
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

// RecorderOptions are the options of NewRecorder. Every zero field has a default.
type RecorderOptions struct {
	Now            func() time.Time // default time.Now
	Component      string           // source.component, default "kubelet", which clients filter for
	Host           string           // source.host: the node name
	MaxPerPod      int              // maximum number of events per pod
	MaxBytesPerPod int              // maximum size of the event texts per pod
	Retention      time.Duration    // how long the events of a deleted pod are kept
	MaxDeletedPods int              // maximum number of deleted pods with events
}

// Recorder keeps the events of the node's pods. It is safe for concurrent use.
type Recorder struct {
	opt RecorderOptions

	mu          sync.Mutex
	pods        map[types.UID]*podEvents
	subs        map[*Subscription]struct{}
	seq         uint64
	deletedPods int // number of pods with deletedAt
}

// podEvents holds the events of one pod, ordered by last occurrence.
type podEvents struct {
	ref       PodRef
	list      []*entry
	bytes     int
	deletedAt time.Time // zero: not deleted
}

// entry is a compact event.
type entry struct {
	typ, reason, message, path string
	similarity                 uint64 // see similarityHash
	count                      int32
	first, last                time.Time
	id                         uint64 // sequence number of the first occurrence, part of the name
	version                    uint64 // sequence number of the last occurrence
}

func (e *entry) size() int { return len(e.reason) + len(e.message) + len(e.path) + 128 }

// NewRecorder returns an empty Recorder.
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

// Record records an event of a pod. If an event with the same type, reason, container and message
// is kept, its count is increased. Messages that differ only in runtime IDs count as equal, and the
// newest is kept. Record never blocks.
func (r *Recorder) Record(ref PodRef, ev Event) {
	if ev.At.IsZero() {
		ev.At = r.opt.Now()
	}
	ev.Type = cmp.Or(ev.Type, corev1.EventTypeNormal)
	ev.Message = truncate(ev.Message, MaxMessageBytes)
	ev.Reason = truncate(ev.Reason, 128)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.opt.Now())
	p := r.pods[ref.UID]
	if p == nil {
		p = &podEvents{ref: ref}
		r.pods[ref.UID] = p
	}
	r.seq++
	recorded := p.add(ev, r.seq)
	p.enforceLimits(r.opt.MaxPerPod, r.opt.MaxBytesPerPod)
	if len(r.subs) == 0 {
		return
	}
	out := r.object(p.ref, recorded)
	for s := range r.subs {
		s.offer(out)
	}
}

// add adds ev to the events of the pod and returns its entry, the last one of the list.
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

// minIDLength is the minimum length of a sequence of hexadecimal digits that is considered a
// runtime ID.
const minIDLength = 32

// similarityHash returns a hash of the message without runtime IDs. Some messages contain a
// different ID every time, for example that of an exec that cannot start, and each would be a new
// event.
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
		_, _ = h.Write([]byte(part)) // never fails
	}
	return h.Sum64()
}

func isHex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' }

// enforceLimits drops the events with the oldest last occurrence. The newest event always remains.
func (p *podEvents) enforceLimits(count, bytes int) {
	n := 0
	for len(p.list)-n > 1 && (len(p.list)-n > count || p.bytes > bytes) {
		p.bytes -= p.list[n].size()
		n++
	}
	p.list = slices.Delete(p.list, 0, n)
}

// List returns the events of one pod ordered by last occurrence, or nil.
func (r *Recorder) List(uid types.UID) []corev1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.opt.Now())
	p := r.pods[uid]
	if p == nil {
		return nil
	}
	return r.objects(p)
}

// All returns the events of all pods ordered by last occurrence, including those of recently
// deleted pods.
func (r *Recorder) All() []corev1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all()
}

// Matching returns the events of All that match.
func (r *Recorder) Matching(matches func(*corev1.Event) bool) []corev1.Event {
	return slices.DeleteFunc(r.All(), func(e corev1.Event) bool { return !matches(&e) })
}

func (r *Recorder) all() []corev1.Event {
	r.expire(r.opt.Now())
	type podEvent struct {
		ref PodRef
		x   *entry
	}
	var list []podEvent
	for _, p := range r.pods {
		for _, x := range p.list {
			list = append(list, podEvent{p.ref, x})
		}
	}
	slices.SortFunc(list, func(a, b podEvent) int { return cmp.Compare(a.x.version, b.x.version) })
	out := make([]corev1.Event, 0, len(list))
	for _, e := range list {
		out = append(out, r.object(e.ref, e.x))
	}
	return out
}

// PodDeleted starts the retention time of a pod's events. Later events of the pod do not extend it.
func (r *Recorder) PodDeleted(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opt.Now()
	if p := r.pods[uid]; p != nil && p.deletedAt.IsZero() {
		p.deletedAt = now
		r.deletedPods++
	}
	r.expire(now)
}

// PodCreated ends the retention time of the events of an earlier pod with the UID: a file that is deleted and written
// again defines a pod with the same UID.
func (r *Recorder) PodCreated(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[uid]; p != nil && !p.deletedAt.IsZero() {
		p.deletedAt = time.Time{}
		r.deletedPods--
	}
}

// expire drops the events of pods deleted before the retention time, and of the oldest deleted pods
// above the limit.
func (r *Recorder) expire(now time.Time) {
	if r.deletedPods == 0 {
		return
	}
	var expired []*podEvents
	for uid, p := range r.pods {
		switch {
		case p.deletedAt.IsZero():
		case now.Sub(p.deletedAt) >= r.opt.Retention:
			delete(r.pods, uid)
			r.deletedPods--
		default:
			expired = append(expired, p)
		}
	}
	if len(expired) <= r.opt.MaxDeletedPods {
		return
	}
	slices.SortFunc(expired, func(a, b *podEvents) int { return a.deletedAt.Compare(b.deletedAt) })
	for _, p := range expired[:len(expired)-r.opt.MaxDeletedPods] {
		delete(r.pods, p.ref.UID)
		r.deletedPods--
	}
}

func (r *Recorder) objects(p *podEvents) []corev1.Event {
	out := make([]corev1.Event, 0, len(p.list))
	for _, x := range p.list {
		out = append(out, r.object(p.ref, x))
	}
	return out
}

// object returns the Kubernetes event. Repetitions keep its name and increase its resource version.
func (r *Recorder) object(ref PodRef, x *entry) corev1.Event {
	h := fnv.New32a()
	_, _ = h.Write([]byte(ref.UID)) // never fails
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
			APIVersion: cmp.Or(ref.APIVersion, "v1"), Kind: cmp.Or(ref.Kind, "Pod"), Namespace: ref.Namespace,
			Name: ref.Name, UID: ref.UID, FieldPath: x.path,
		},
		Reason: x.reason, Message: x.message, Type: x.typ, Count: x.count,
		FirstTimestamp:      metav1.NewTime(x.first),
		LastTimestamp:       metav1.NewTime(x.last),
		Source:              corev1.EventSource{Component: r.opt.Component, Host: r.opt.Host},
		ReportingController: r.opt.Component,
		ReportingInstance:   r.opt.Host,
	}
}

// truncate shortens s to at most n bytes at a character boundary and appends an ellipsis.
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

// EventFromReason converts a Reason of a plan to an event.
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
