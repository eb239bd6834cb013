package localworkloads

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// key identifies an object of the store.
type key struct{ kind, namespace, name string }

func (k key) String() string { return k.kind + "/" + k.namespace + "/" + k.name }

// newObject returns an empty object of a kind, or nil for an unknown kind.
func newObject(kind string) workloads.Object {
	switch kind {
	case "Pod":
		return &corev1.Pod{}
	case "Deployment":
		return &appsv1.Deployment{}
	case "ReplicaSet":
		return &appsv1.ReplicaSet{}
	case "StatefulSet":
		return &appsv1.StatefulSet{}
	case "DaemonSet":
		return &appsv1.DaemonSet{}
	case "ControllerRevision":
		return &appsv1.ControllerRevision{}
	case "Job":
		return &batchv1.Job{}
	case "CronJob":
		return &batchv1.CronJob{}
	}
	return nil
}

func kindOf(o workloads.Object) string {
	switch o.(type) {
	case *corev1.Pod:
		return "Pod"
	case *appsv1.Deployment:
		return "Deployment"
	case *appsv1.ReplicaSet:
		return "ReplicaSet"
	case *appsv1.StatefulSet:
		return "StatefulSet"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *appsv1.ControllerRevision:
		return "ControllerRevision"
	case *batchv1.Job:
		return "Job"
	case *batchv1.CronJob:
		return "CronJob"
	}
	return ""
}

func keyOf(o workloads.Object) key { return key{kindOf(o), o.GetNamespace(), o.GetName()} }

// entry is an object with what the store keeps beside it.
type entry struct {
	Object json.RawMessage `json:"object,omitempty"`
	// Children is the number of pods and other objects created for the object so far. The next one gets a name and UID
	// derived from it.
	Children int64 `json:"children,omitempty"`
	// Incarnation distinguishes a workload from earlier ones with the same UID, whose files were deleted.
	Incarnation int64 `json:"incarnation,omitempty"`
	// File is set for the workload of a file.
	File *fileRecord `json:"file,omitempty"`
	// ExpiredUID is the UID of a Job that has been deleted after its TTL: its file must not start it again. Its name in
	// the store is that of earlier releases.
	ExpiredUID types.UID `json:"retiredUID,omitempty"`
	// ScheduleChanged is when a file changed the schedule of a CronJob. Zero: never.
	ScheduleChanged time.Time `json:"scheduleChanged,omitzero"`

	gone   bool             // a pod that the agent has deleted, but its Job has not counted
	object workloads.Object // nil: expired
}

// fileRecord is what is known about the file of a workload.
type fileRecord struct {
	Hash string `json:"hash"` // of the manifest that has been applied
	Path string `json:"path"`
	// Overrides describes the changes made by commands since then, by command.
	Overrides map[string]string `json:"overrides,omitempty"`
	// Joined means that an event says that the API server does not know the workload.
	Joined bool `json:"joined,omitempty"`
}

// objects is the store of objects. It is not safe for concurrent use. Stored objects are immutable.
type objects struct {
	entries map[key]*entry
	index   index // of the objects of entries
	version int64
	removed int64        // number of workloads of files that were deleted
	dirty   map[key]bool // changed since the last transaction
	changed func(key)    // called for each changed object
	dropped func(workloads.Object)
}

func newObjects() *objects {
	return &objects{entries: map[key]*entry{}, index: newIndex(), dirty: map[key]bool{}, changed: func(key) {},
		dropped: func(workloads.Object) {}}
}

// get returns the object with a key, or nil.
func (s *objects) get(k key) workloads.Object {
	if e := s.entries[k]; e != nil {
		return e.object
	}
	return nil
}

// set sets the object of an entry. Nil means that there is none.
func (s *objects) set(k key, e *entry, o workloads.Object) {
	s.index.set(k, e.object, o)
	e.object = o
}

// list returns the objects of type T in a namespace, ordered by namespace and name. An empty namespace means all.
func list[T workloads.Object](s *objects, namespace string) (out []T) {
	var none T
	for _, k := range s.index.within(kindOf(none), namespace) {
		if o, ok := s.get(k).(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// controlledBy returns the objects of type T that the owner controls, ordered by name.
func controlledBy[T workloads.Object](s *objects, owner workloads.Object) (out []T) {
	for _, k := range s.index.children[owner.GetUID()] {
		if o, ok := s.get(k).(T); ok && k.namespace == owner.GetNamespace() {
			out = append(out, o)
		}
	}
	return out
}

// childrenOf returns the keys of all objects that the owner controls, in order.
func (s *objects) childrenOf(owner types.UID) []key { return slices.Clone(s.index.children[owner]) }

// ownerKey returns the key of the controller of an object.
func ownerKey(o workloads.Object) (key, bool) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return key{}, false
	}
	return key{ref.Kind, o.GetNamespace(), ref.Name}, true
}

// put stores an object with a new resource version. persistent is false for a change that need not survive a restart.
func (s *objects) put(o workloads.Object, persistent bool) {
	k := keyOf(o)
	s.version++
	o.SetResourceVersion(strconv.FormatInt(s.version, 10))
	e := s.entries[k]
	if e == nil {
		e = &entry{}
		s.entries[k] = e
	}
	s.set(k, e, o)
	if persistent {
		s.dirty[k] = true
	}
	s.changed(k)
}

// drop removes an object and everything kept beside it.
func (s *objects) drop(k key) {
	e := s.entries[k]
	if e == nil {
		return
	}
	owner, owned := key{}, false
	if e.object != nil {
		owner, owned = ownerKey(e.object)
		s.dropped(e.object)
	}
	s.set(k, e, nil)
	if e.ExpiredUID == "" {
		delete(s.entries, k)
		if e.File != nil {
			s.removed++
			s.dirty[removedKey] = true
		}
	}
	s.dirty[k] = true
	s.changed(k)
	if owned {
		s.changed(owner)
	}
}

// update replaces an object. A changed specification increments the generation.
func (s *objects) update(next workloads.Object, now time.Time) {
	old := s.get(keyOf(next))
	next.SetResourceVersion(old.GetResourceVersion())
	next.SetGeneration(old.GetGeneration())
	if equality.Semantic.DeepEqual(old, next) {
		return
	}
	if !sameSpec(old, next) {
		next.SetGeneration(old.GetGeneration() + 1)
	}
	s.put(next, true)
	s.notifyOwner(next)
	if k := keyOf(next); s.entries[k].gone {
		s.podGone(k, now)
	} else {
		s.collect(k, now)
	}
}

// sameSpec reports whether two objects of the same kind have the same specification.
func sameSpec(a, b workloads.Object) bool { return equality.Semantic.DeepEqual(specOf(a), specOf(b)) }

// specOf returns the specification of an object. The annotations of a Deployment are a part of it, as upstream.
func specOf(o workloads.Object) any {
	switch x := o.(type) {
	case *appsv1.Deployment:
		return []any{x.Spec, x.Annotations}
	case *appsv1.ReplicaSet:
		return x.Spec
	case *appsv1.StatefulSet:
		return x.Spec
	case *appsv1.DaemonSet:
		return x.Spec
	case *batchv1.Job:
		return x.Spec
	case *batchv1.CronJob:
		return x.Spec
	case *corev1.Pod:
		return x.Spec
	}
	return nil
}

// remove starts the deletion of an object and of what it controls. A pod stays until the agent has deleted it, any
// other object until nothing is left of what it controls.
func (s *objects) remove(k key, now time.Time) {
	old := s.get(k)
	if old == nil || old.GetDeletionTimestamp() != nil {
		return
	}
	next := copyOf(old)
	at := metav1.NewTime(now.Truncate(time.Second))
	if pod, ok := next.(*corev1.Pod); ok {
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
			grace = *g
		}
		if workloads.Terminated(pod) {
			grace = 0
		}
		pod.DeletionGracePeriodSeconds = &grace
		at = metav1.NewTime(now.Add(time.Duration(grace) * time.Second).Truncate(time.Second))
	}
	next.SetDeletionTimestamp(&at)
	s.put(next, true)
	s.notifyOwner(next)
	s.collect(k, now)
}

// collect continues the deletion of an object: it deletes what the object controls, then the object.
func (s *objects) collect(k key, now time.Time) {
	o := s.get(k)
	if o == nil || o.GetDeletionTimestamp() == nil || k.kind == "Pod" {
		return
	}
	for _, child := range s.childrenOf(o.GetUID()) {
		s.removeUncounted(child, now)
	}
	if len(s.childrenOf(o.GetUID())) == 0 {
		s.drop(k)
	}
}

// removeUncounted is remove for an object without an owner that counts its pods.
func (s *objects) removeUncounted(k key, now time.Time) {
	if pod, ok := s.get(k).(*corev1.Pod); ok && len(pod.Finalizers) > 0 {
		next := pod.DeepCopy()
		next.Finalizers = nil
		s.put(next, true)
		if s.entries[k].gone {
			s.podGone(k, now)
			return
		}
	}
	s.remove(k, now)
}

// orphans returns the keys of the objects whose controller is not in the store, in order.
func (s *objects) orphans() (out sortedKeys) {
	existing := map[types.UID]bool{}
	for _, e := range s.entries {
		if e.object != nil {
			existing[e.object.GetUID()] = true
		}
	}
	for owner, children := range s.index.children {
		if !existing[owner] {
			for _, k := range children {
				out.add(k)
			}
		}
	}
	return out
}

// podGone removes a pod that the agent has deleted. A pod with a finalizer stays until its Job has counted it.
func (s *objects) podGone(k key, now time.Time) {
	o := s.get(k)
	if o == nil {
		return
	}
	if len(o.GetFinalizers()) > 0 {
		s.entries[k].gone = true
		s.remove(k, now)
		return
	}
	owner, owned := ownerKey(o)
	s.drop(k)
	if owned {
		s.collect(owner, now)
	}
}

func (s *objects) notifyOwner(o workloads.Object) {
	if owner, owned := ownerKey(o); owned {
		s.changed(owner)
	}
}

func copyOf[T workloads.Object](o T) T {
	out, _ := o.DeepCopyObject().(T) // DeepCopyObject returns the type of its receiver
	return out
}

// removedKey is the key of objects.removed in the local store.
var removedKey = key{"Removed", "-", "-"}

// keyPrefix is the prefix of the keys in the local store.
const keyPrefix = "workloads/"

// transaction returns the changed values for the local store, and forgets the changes. A nil value deletes the key.
func (s *objects) transaction() (map[string][]byte, error) {
	out := make(map[string][]byte, len(s.dirty))
	for k := range s.dirty {
		if k == removedKey {
			out[keyPrefix+k.String()] = []byte(strconv.FormatInt(s.removed, 10))
			continue
		}
		e := s.entries[k]
		if e == nil {
			out[keyPrefix+k.String()] = nil
			continue
		}
		stored := *e
		if e.object != nil {
			var err error
			if stored.Object, err = json.Marshal(persistentPart(e.object)); err != nil {
				return nil, fmt.Errorf("encode %s: %w", k, err)
			}
		}
		value, err := json.Marshal(stored)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", k, err)
		}
		out[keyPrefix+k.String()] = value
	}
	clear(s.dirty)
	return out, nil
}

// persistentPart is an object without what the agent reports again after a restart: the status of a pod that has not
// terminated.
func persistentPart(o workloads.Object) workloads.Object {
	pod, ok := o.(*corev1.Pod)
	if !ok || workloads.Terminated(pod) {
		return o
	}
	out := *pod
	out.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return &out
}

func parseKey(name string) (key, bool) {
	parts := strings.Split(strings.TrimPrefix(name, keyPrefix), "/")
	if len(parts) != 3 {
		return key{}, false
	}
	return key{parts[0], parts[1], parts[2]}, true
}

// load restores the objects from the values of the local store. Damaged values are returned as errors and left out.
func (s *objects) load(values map[string][]byte) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		k, ok := parseKey(name)
		if n, err := strconv.ParseInt(string(values[name]), 10, 64); k == removedKey && err == nil {
			s.removed = n
			continue
		}
		e, o := &entry{}, newObject(k.kind)
		if !ok || o == nil {
			errs = append(errs, fmt.Errorf("decode %s: unknown kind", name))
			continue
		}
		err := json.Unmarshal(values[name], e)
		stored := e.Object != nil
		if err == nil && stored {
			err = json.Unmarshal(e.Object, o)
			e.Object = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("decode %s: %w", name, err))
			continue
		}
		s.entries[k] = e
		if stored {
			s.set(k, e, o)
			if n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64); err == nil {
				s.version = max(s.version, n)
			}
		}
	}
	return errs
}
