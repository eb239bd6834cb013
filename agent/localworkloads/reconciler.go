package localworkloads

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/source"
	"berth/podspec"
	"berth/workloads"
	"berth/workloads/job"
)

// Config is the configuration of a Reconciler. Node is required.
type Config struct {
	// Node returns this node with its name, labels and taints.
	Node func() *corev1.Node
	// Joined reports that the node has an API server, which does not know the workloads of files.
	Joined bool
	// Location is the time zone of schedules without one. Nil: the local one.
	Location *time.Location
	// Record records an event of an object. Nil: none is recorded.
	Record func(ref corev1.ObjectReference, e workloads.Event)
	// Created is called with the UID of each workload of a file that is created. An earlier one may have had the UID.
	// Deleted is called with the UID of each object that no longer exists, except pods. Either may be nil.
	Created, Deleted func(types.UID)
	Log              *slog.Logger
}

// Reconciler executes the decisions about workloads. It is not safe for concurrent use.
type Reconciler struct {
	Config
	store    *objects
	queue    sortedKeys // objects to decide about
	wakes    map[key]time.Time
	failures map[types.UID]failure // by owner of failed pods
	failed   map[types.UID]bool    // pods whose failure has been counted
	backoffs map[types.UID]job.Backoff
	// unobserved are the pods of the previous run that the agent has not reported yet. Nothing is decided until then.
	unobserved map[types.UID]bool
	created    map[types.UID]time.Time // pods of this run: older reports are about an earlier pod with the UID
	byUID      map[types.UID]key       // pods
	emitted    map[types.UID]*corev1.Pod
	retries    map[key]int
	files      map[key]source.Workload // nil: the files have not been read yet
	conflicts  map[key]bool            // workloads of files whose name another object has
	// orphansRemoved is set when the objects of the previous run have been compared with their owners.
	orphansRemoved bool
	// events has the objects with new events, and with false those that no longer exist. The Source persists it.
	events map[types.UID]bool
}

// failure is the back-off of an owner whose pods fail.
type failure struct {
	count int
	at    time.Time
}

// New returns a Reconciler with the objects of the local store.
func New(c Config, stored map[string][]byte) *Reconciler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Record == nil {
		c.Record = func(corev1.ObjectReference, workloads.Event) {}
	}
	if c.Created == nil {
		c.Created = func(types.UID) {}
	}
	if c.Deleted == nil {
		c.Deleted = func(types.UID) {}
	}
	if c.Location == nil {
		c.Location = time.Local
	}
	e := &Reconciler{
		Config: c, store: newObjects(), wakes: map[key]time.Time{},
		failures: map[types.UID]failure{}, failed: map[types.UID]bool{}, unobserved: map[types.UID]bool{},
		created: map[types.UID]time.Time{}, byUID: map[types.UID]key{}, emitted: map[types.UID]*corev1.Pod{},
		retries: map[key]int{}, conflicts: map[key]bool{}, events: map[types.UID]bool{},
		backoffs: map[types.UID]job.Backoff{},
	}
	for _, err := range e.store.load(stored) {
		e.Log.Warn("stored workload unreadable", "err", err)
	}
	for k, entry := range e.store.entries {
		e.queue.add(k)
		if pod, ok := entry.object.(*corev1.Pod); ok {
			e.byUID[pod.UID] = k
			if pod.DeletionTimestamp == nil {
				e.unobserved[pod.UID] = true
			}
		}
	}
	e.store.changed, e.store.dropped = e.changed, e.dropped
	return e
}

// changed queues an object and its owners for a decision.
func (e *Reconciler) changed(k key) {
	for range 3 { // a pod, its ReplicaSet, its Deployment
		e.queue.add(k)
		o := e.store.get(k)
		if o == nil {
			return
		}
		owner, owned := ownerKey(o)
		if !owned {
			return
		}
		k = owner
	}
}

// PodObserved records the status of a pod that the agent reports, as of a time.
func (e *Reconciler) PodObserved(observed *corev1.Pod, at time.Time) {
	k, known := e.byUID[observed.UID]
	if !known || at.IsZero() || at.Before(e.created[observed.UID]) {
		return
	}
	pod, ok := e.store.get(k).(*corev1.Pod)
	if !ok || pod.UID != observed.UID {
		return
	}
	delete(e.unobserved, pod.UID)
	if workloads.Terminated(pod) {
		return // final
	}
	next := *pod
	next.Status = *observed.Status.DeepCopy()
	e.store.put(&next, workloads.Terminated(&next))
	e.countFailure(&next, at)
}

// PodDeleted records that the agent has deleted a pod.
func (e *Reconciler) PodDeleted(uid types.UID, now time.Time) {
	k, known := e.byUID[uid]
	if !known || e.created[uid].After(now) {
		return
	}
	if o := e.store.get(k); o == nil || o.GetUID() != uid || o.GetDeletionTimestamp() == nil {
		return // the agent recreates the pod, or an earlier one had the UID
	}
	delete(e.unobserved, uid)
	e.store.podGone(k, now)
}

// Delays before a failed pod is replaced.
const (
	minFailureDelay = 10 * time.Second
	maxFailureDelay = 5 * time.Minute
)

// countFailure delays the replacement of a pod that has failed, and ends the delay when a pod is ready. Jobs have a
// back-off of their own.
func (e *Reconciler) countFailure(pod *corev1.Pod, at time.Time) {
	owner, owned := ownerKey(pod)
	if !owned || owner.kind == "Job" {
		return
	}
	uid := pod.OwnerReferences[0].UID
	switch {
	case workloads.ReadySince(pod) != nil:
		delete(e.failures, uid)
	case pod.Status.Phase == corev1.PodFailed && !e.failed[pod.UID] && pod.DeletionTimestamp == nil:
		e.failed[pod.UID] = true
		e.failures[uid] = failure{count: e.failures[uid].count + 1, at: at}
	}
}

// notBefore returns when a pod of the owner may be created again.
func (e *Reconciler) notBefore(owner types.UID) time.Time {
	f, failed := e.failures[owner]
	if !failed {
		return time.Time{}
	}
	delay := maxFailureDelay
	if f.count < 6 {
		delay = min(minFailureDelay<<(f.count-1), maxFailureDelay)
	}
	return f.at.Add(delay)
}

// maxSyncs limits how often one object is decided about in one Sync.
const maxSyncs = 100

// Sync decides about all objects that may have changed until nothing changes, and returns the changes for the local
// store, which the caller writes in one transaction.
func (e *Reconciler) Sync(now time.Time) map[string][]byte {
	if len(e.unobserved) == 0 {
		for k, at := range e.wakes {
			if !at.After(now) {
				delete(e.wakes, k)
				e.queue.add(k)
			}
		}
		e.applyFiles(now)
		e.removeOrphans(now)
		syncs := map[key]int{}
		for len(e.queue) > 0 {
			k := e.queue.pop()
			if syncs[k]++; syncs[k] > maxSyncs {
				e.Log.Error("workload sync does not converge", "kind", k.kind, "namespace", k.namespace, "name", k.name)
				e.wakeAt(k, now.Add(time.Second))
				continue
			}
			e.sync(k, now)
			if len(e.queue) == 0 {
				e.applyFiles(now) // a workload may have waited for the deletion of its predecessor
			}
		}
	}
	changes, err := e.store.transaction()
	if err != nil {
		e.Log.Error("workload encoding failed", "err", err)
	}
	return changes
}

// removeOrphans deletes the objects of the previous run whose owner is unknown, because its value in the local store
// was unreadable. It is called when the workloads of files exist, which have the same UIDs again: their objects stay.
func (e *Reconciler) removeOrphans(now time.Time) {
	if e.orphansRemoved || e.files == nil {
		return
	}
	e.orphansRemoved = true
	for _, k := range e.store.orphans() {
		e.Log.Warn("object deleted because its owner is unknown", "kind", k.kind, "namespace", k.namespace,
			"name", k.name)
		e.store.removeUncounted(k, now)
	}
}

// Wake returns when Sync has to be called again although nothing changes. Zero: not needed.
func (e *Reconciler) Wake() (wake time.Time) {
	if len(e.unobserved) > 0 {
		return wake
	}
	for _, at := range e.wakes {
		wake = workloads.Earlier(wake, at)
	}
	return wake
}

func (e *Reconciler) wakeAt(k key, at time.Time) {
	if !at.IsZero() {
		e.wakes[k] = workloads.Earlier(e.wakes[k], at)
	}
}

// outcome is a decision about an object of any kind.
type outcome struct {
	writes      []workloads.Write
	status      workloads.Object // a copy of the object with the new status; nil: unchanged
	annotations map[string]string
	events      []workloads.Event
	wake        time.Time
	// backoff is what to keep when the status of a Job is stored.
	backoff *job.Backoff
}

// sync decides about one object and executes the decision.
func (e *Reconciler) sync(k key, now time.Time) {
	delete(e.wakes, k)
	o := e.store.get(k)
	if o == nil {
		return
	}
	if o.GetDeletionTimestamp() != nil {
		e.store.collect(k, now)
		return
	}
	d := e.decide(o, now, nil)
	if failed := e.apply(o, d.writes, now); failed != nil {
		if errors.Is(failed, errOutdated) {
			e.queue.add(k)
			return
		}
		e.retries[k]++
		e.wakeAt(k, now.Add(min(time.Second<<min(e.retries[k], 8), maxFailureDelay)))
		e.Log.Warn("workload write failed", "kind", k.kind, "namespace", k.namespace, "name", k.name, "err", failed)
		if current := e.store.get(k); current != nil {
			e.finish(k, current, e.decide(current, now, failed))
		}
		return
	}
	delete(e.retries, k)
	e.finish(k, o, d)
}

// finish stores the status of a decision, records its events and notes when it wants to decide again.
func (e *Reconciler) finish(k key, o workloads.Object, d outcome) {
	e.writeStatus(d)
	if d.status != nil && d.backoff != nil {
		e.backoffs[o.GetUID()] = *d.backoff
	}
	for _, event := range d.events {
		e.record(o, event, "")
	}
	e.wakeAt(k, d.wake)
}

// dropped is called for each object that no longer exists. The agent keeps the events of pods.
func (e *Reconciler) dropped(o workloads.Object) {
	uid, k := o.GetUID(), keyOf(o)
	delete(e.retries, k)
	delete(e.wakes, k)
	if _, pod := o.(*corev1.Pod); pod {
		delete(e.byUID, uid)
		delete(e.created, uid)
		delete(e.emitted, uid)
		delete(e.failed, uid)
		return
	}
	delete(e.failures, uid)
	delete(e.backoffs, uid)
	e.events[uid] = false
	e.Deleted(uid)
}

// writeStatus stores the status and annotations of a decision.
func (e *Reconciler) writeStatus(d outcome) {
	if d.status == nil {
		return
	}
	current := e.store.get(keyOf(d.status))
	if current == nil || current.GetUID() != d.status.GetUID() {
		return
	}
	next := withStatus(copyOf(current), d.status)
	if len(d.annotations) > 0 {
		annotations := maps.Clone(next.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, d.annotations)
		next.SetAnnotations(annotations)
	}
	if !equality.Semantic.DeepEqual(current, next) {
		e.store.put(next, true)
	}
}

func (e *Reconciler) record(o workloads.Object, event workloads.Event, value string) {
	if event.Reason == "" {
		return
	}
	event.Message = strings.ReplaceAll(event.Message, "%s", value)
	e.events[o.GetUID()] = true
	e.Record(referenceTo(o), event)
}

// referenceTo returns the reference of events about an object.
func referenceTo(o workloads.Object) corev1.ObjectReference {
	k := keyOf(o)
	return corev1.ObjectReference{
		APIVersion: apiVersion(k.kind), Kind: k.kind, Namespace: k.namespace, Name: k.name, UID: o.GetUID(),
	}
}

func apiVersion(kind string) string {
	switch kind {
	case "Pod":
		return "v1"
	case "Job", "CronJob":
		return batchv1.SchemeGroupVersion.String()
	}
	return "apps/v1"
}

// Pods returns the pods that the agent has to run, as it expects them from a source. Unchanged pods keep their
// pointers.
func (e *Reconciler) Pods() (out []*corev1.Pod) {
	for _, pod := range list[*corev1.Pod](e.store, "") {
		if e.store.entries[keyOf(pod)].gone {
			continue
		}
		before := e.emitted[pod.UID]
		if before == nil || (before.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) {
			before = podOf(pod)
			e.emitted[pod.UID] = before
		}
		out = append(out, before)
	}
	return out
}

// podOf returns a pod of the store as the agent runs it.
func podOf(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Finalizers, out.ResourceVersion, out.Status = nil, "", corev1.PodStatus{}
	return out
}

// complete sets everything of a new pod that an API server and the scheduler would set.
func (e *Reconciler) complete(pod *corev1.Pod, now time.Time) {
	node := e.Node().Name
	pod.Spec.NodeName, pod.Generation = node, 1
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[source.AnnotationSource] = source.File
	pod.Annotations[source.AnnotationSeen] = now.UTC().Format(time.RFC3339Nano)
	pod.Annotations[source.AnnotationHash] = string(pod.UID)
	pod.Annotations[source.AnnotationContent] = string(pod.UID)
	podspec.SetDefaults(pod)
	everything := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if !slices.Contains(pod.Spec.Tolerations, everything) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, everything)
	}
	pod.Status.Phase = corev1.PodPending
}
