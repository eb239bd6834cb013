package workloadstest

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// Key identifies an object. Kind is the name of its Go type.
type Key struct{ Kind, Namespace, Name string }

func (k Key) String() string { return k.Kind + " " + k.Namespace + "/" + k.Name }

// KeyOf returns the key of an object.
func KeyOf(o workloads.Object) Key {
	return Key{reflect.TypeOf(o).Elem().Name(), o.GetNamespace(), o.GetName()}
}

func kindFor[T workloads.Object]() string { return reflect.TypeFor[T]().Elem().Name() }

// RecordedEvent is an event and the object it was recorded for.
type RecordedEvent struct {
	Object Key
	workloads.Event
}

// Server is a model of an API server.
type Server struct {
	// Now is the time of the server. The test moves it.
	Now time.Time
	// Reject, if set, can fail a write of Apply before it has an effect.
	Reject func(workloads.Write) error
	// OnChange, if set, is called after each change. old is nil for a new object, current for a removed one. It must
	// not modify them.
	OnChange func(old, current workloads.Object)
	// Events are the recorded events, oldest first.
	Events []RecordedEvent

	rand    *rand.Rand
	objects map[Key]workloads.Object
	changes map[string][]change // by kind, oldest first
	version int
	uids    int
}

// change is one change of an object. Object is nil if it was removed.
type change struct {
	key    Key
	object workloads.Object
}

// NewServer returns a server without objects whose generated names come from rng.
func NewServer(rng *rand.Rand, now time.Time) *Server {
	return &Server{Now: now, rand: rng, objects: map[Key]workloads.Object{}, changes: map[string][]change{}}
}

// Get returns a copy of an object.
func Get[T workloads.Object](s *Server, namespace, name string) (object T, found bool) {
	o, ok := s.objects[Key{kindFor[T](), namespace, name}]
	if !ok {
		return object, false
	}
	return clone(as[T](o)), true
}

// List returns copies of all objects of a kind, ordered by namespace and name.
func List[T workloads.Object](s *Server) (out []T) {
	for _, k := range sortedKeys(s.objects, kindFor[T]()) {
		out = append(out, clone(as[T](s.objects[k])))
	}
	return out
}

// Edit changes an object as its owner would: metadata and spec first, then its status. It does nothing if the object
// does not exist.
func Edit[T workloads.Object](s *Server, namespace, name string, edit func(T)) error {
	o, found := Get[T](s, namespace, name)
	if !found {
		return nil
	}
	edit(o)
	if err := s.Update(o); err != nil {
		return err
	}
	if _, kept := s.objects[KeyOf(o)]; !kept || !field(o, "Status").IsValid() {
		return nil
	}
	o.SetResourceVersion("")
	return s.UpdateStatus(o)
}

// Create stores an object as new: with a UID, without status. It returns a copy of what was stored.
func (s *Server) Create(o workloads.Object) (workloads.Object, error) {
	o = clone(o)
	if o.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	if o.GetName() == "" {
		if o.GetGenerateName() == "" {
			return nil, apierrors.NewBadRequest("name or generateName is required")
		}
		o.SetName(o.GetGenerateName() + s.suffix())
	}
	if _, exists := s.objects[KeyOf(o)]; exists {
		return nil, apierrors.NewAlreadyExists(resource(o), o.GetName())
	}
	s.uids++
	o.SetUID(types.UID("uid-" + strconv.Itoa(s.uids)))
	o.SetCreationTimestamp(metav1.NewTime(s.Now.Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetGeneration(1)
	if status := field(o, "Status"); status.IsValid() {
		status.SetZero()
	}
	if pod, ok := o.(*corev1.Pod); ok {
		pod.Status.Phase = corev1.PodPending
	}
	s.store(o)
	return clone(o), nil
}

func (s *Server) suffix() string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	out := make([]byte, 5)
	for i := range out {
		out[i] = letters[s.rand.IntN(len(letters))]
	}
	return string(out)
}

// Update replaces metadata and spec of an object. Without a resource version it is unconditional.
func (s *Server) Update(o workloads.Object) error { return s.write(o, false) }

// UpdateStatus replaces the status and the annotations of an object. Without a resource version it is unconditional.
func (s *Server) UpdateStatus(o workloads.Object) error { return s.write(o, true) }

func (s *Server) write(o workloads.Object, statusOnly bool) error {
	old, found := s.objects[KeyOf(o)]
	switch {
	case !found:
		return notFound(o)
	case o.GetUID() != old.GetUID():
		return conflict(o, "the UID of the object has changed")
	case o.GetResourceVersion() != "" && o.GetResourceVersion() != old.GetResourceVersion():
		return conflict(o, "the object has been modified")
	}
	next := clone(o)
	if statusOnly {
		next = clone(old)
		next.SetAnnotations(clone(o).GetAnnotations())
		field(next, "Status").Set(field(clone(o), "Status"))
	} else {
		if status := field(next, "Status"); status.IsValid() {
			status.Set(field(clone(old), "Status"))
		}
		next.SetGeneration(old.GetGeneration())
		next.SetCreationTimestamp(old.GetCreationTimestamp())
		next.SetDeletionTimestamp(old.GetDeletionTimestamp())
		next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
		if generationChanged(old, next) {
			next.SetGeneration(old.GetGeneration() + 1)
		}
	}
	next.SetResourceVersion(old.GetResourceVersion())
	if equality.Semantic.DeepEqual(old, next) {
		return nil
	}
	if removable(next) {
		s.remove(next)
		return nil
	}
	s.store(next)
	return nil
}

// Delete deletes an object: a pod on a node terminates until FinishPod is called, an object with finalizers stays
// until they are removed, and any other object is removed.
func (s *Server) Delete(o workloads.Object) error {
	old, found := s.objects[KeyOf(o)]
	switch {
	case !found:
		return notFound(o)
	case o.GetUID() != old.GetUID():
		return conflict(o, "the UID in the precondition differs")
	case old.GetDeletionTimestamp() != nil:
		return nil
	}
	next := clone(old)
	grace := int64(0)
	if pod, ok := old.(*corev1.Pod); ok && pod.Spec.NodeName != "" && !workloads.Terminated(pod) {
		grace = 30
		if pod.Spec.TerminationGracePeriodSeconds != nil {
			grace = *pod.Spec.TerminationGracePeriodSeconds
		}
	}
	at := metav1.NewTime(s.Now.Add(time.Duration(grace) * time.Second).Truncate(time.Second))
	next.SetDeletionTimestamp(&at)
	next.SetDeletionGracePeriodSeconds(&grace)
	next.SetGeneration(old.GetGeneration() + 1)
	if removable(next) {
		s.remove(old)
		return nil
	}
	s.store(next)
	return nil
}

// FinishPod ends the graceful termination of a terminating pod, as the kubelet does when its containers have ended.
func (s *Server) FinishPod(namespace, name string) {
	old, found := s.objects[Key{"Pod", namespace, name}]
	if !found || old.GetDeletionTimestamp() == nil {
		return
	}
	next := clone(old)
	next.SetDeletionGracePeriodSeconds(new(int64))
	if removable(next) {
		s.remove(old)
		return
	}
	s.store(next)
}

// CollectGarbage deletes the objects whose controller no longer exists, one level.
func (s *Server) CollectGarbage() {
	uids := map[types.UID]bool{}
	for _, o := range s.objects {
		uids[o.GetUID()] = true
	}
	for _, k := range sortedKeys(s.objects, "") {
		o := s.objects[k]
		if ref := metav1.GetControllerOfNoCopy(o); ref != nil && !uids[ref.UID] {
			_ = s.Delete(o) // it exists with this UID
		}
	}
}

// generationChanged reports whether a change increments the generation: a changed specification does, and for
// Deployments a changed annotation.
func generationChanged(old, current workloads.Object) bool {
	if spec := field(current, "Spec"); spec.IsValid() &&
		!equality.Semantic.DeepEqual(spec.Interface(), field(old, "Spec").Interface()) {
		return true
	}
	_, isDeployment := current.(*appsv1.Deployment)
	return isDeployment && !equality.Semantic.DeepEqual(old.GetAnnotations(), current.GetAnnotations())
}

func removable(o workloads.Object) bool {
	grace := o.GetDeletionGracePeriodSeconds()
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && (grace == nil || *grace == 0)
}

func (s *Server) store(o workloads.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	k := KeyOf(o)
	old := s.objects[k]
	s.objects[k] = o
	s.changed(k, old, o)
}

func (s *Server) remove(o workloads.Object) {
	s.version++
	k := KeyOf(o)
	old := s.objects[k]
	delete(s.objects, k)
	s.changed(k, old, nil)
}

func (s *Server) changed(k Key, old, current workloads.Object) {
	s.changes[k.Kind] = append(s.changes[k.Kind], change{k, current})
	if s.OnChange != nil {
		s.OnChange(old, current)
	}
}

func sortedKeys(objects map[Key]workloads.Object, kind string) (out []Key) {
	for k := range objects {
		if kind == "" || k.Kind == kind {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func clone[T workloads.Object](o T) T {
	out, _ := o.DeepCopyObject().(T) // DeepCopyObject returns the type of its receiver
	return out
}

// as returns an object of a known kind as its type.
func as[T workloads.Object](o workloads.Object) T {
	out, _ := o.(T)
	return out
}

// field returns a field of an object. The value is not valid if the kind does not have it.
func field(o workloads.Object, name string) reflect.Value {
	return reflect.ValueOf(o).Elem().FieldByName(name)
}

func resource(o workloads.Object) schema.GroupResource {
	return schema.GroupResource{Resource: strings.ToLower(KeyOf(o).Kind) + "s"}
}

func notFound(o workloads.Object) error { return apierrors.NewNotFound(resource(o), o.GetName()) }

func conflict(o workloads.Object, why string) error {
	return apierrors.NewConflict(resource(o), o.GetName(), errors.New(why))
}

// Version returns the resource version of the newest change.
func (s *Server) Version() string { return strconv.Itoa(s.version) }
