package workloadstest

import (
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/workloads"
)

// Apply applies one write of a decision about owner and returns the written object, which for a deletion is the
// deleted one.
func (s *Server) Apply(owner Key, ownerUID string, w workloads.Write) (workloads.Object, error) {
	if s.Reject != nil {
		if err := s.Reject(w); err != nil {
			return nil, err
		}
	}
	if w.VerifyOwner {
		live, found := s.objects[owner]
		if !found || string(live.GetUID()) != ownerUID {
			return nil, fmt.Errorf("original %s is gone", owner)
		}
		if live.GetDeletionTimestamp() != nil {
			return nil, fmt.Errorf("%s has just been deleted", owner)
		}
	}
	switch w.Verb {
	case workloads.Create:
		return s.Create(w.Object)
	case workloads.Update:
		if w.Object.GetResourceVersion() == "" {
			return nil, apierrors.NewBadRequest("metadata.resourceVersion: must be specified for an update")
		}
		return s.after(w.Object, s.Update(w.Object))
	case workloads.Patch:
		return s.patch(w)
	case workloads.Delete:
		return w.Object, s.Delete(w.Object)
	}
	return nil, fmt.Errorf("unknown verb %d", w.Verb)
}

// after returns the stored object after a write, or the written one if the write removed it.
func (s *Server) after(o workloads.Object, err error) (workloads.Object, error) {
	if err != nil {
		return nil, err
	}
	if stored, found := s.objects[KeyOf(o)]; found {
		return clone(stored), nil
	}
	return o, nil
}

// patch changes the fields of the stored object in which changed differs from base.
func (s *Server) patch(w workloads.Write) (workloads.Object, error) {
	base, changed := w.Base, w.Object
	old, found := s.objects[KeyOf(base)]
	switch {
	case !found:
		return nil, notFound(base)
	case old.GetUID() != base.GetUID():
		return nil, conflict(base, "the UID in the precondition differs")
	case w.IfUnchanged && old.GetResourceVersion() != base.GetResourceVersion():
		return nil, conflict(base, "the object has been modified")
	}
	next, err := merged(base, changed, old)
	if err != nil {
		return nil, err
	}
	next.SetResourceVersion("")
	return s.after(next, s.Update(next))
}

func merged(base, changed, current workloads.Object) (workloads.Object, error) {
	var maps [3]map[string]any
	for i, o := range []workloads.Object{base, changed, current} {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, err
		}
		maps[i] = m
	}
	merge(maps[0], maps[1], maps[2])
	out, _ := reflect.TypeAssert[workloads.Object](reflect.New(reflect.TypeOf(current).Elem()))
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(maps[2], out)
}

// merge applies the difference between base and changed to current, as a JSON merge patch: maps field by field, lists
// as a whole.
func merge(base, changed, current map[string]any) {
	for k, was := range base {
		if _, kept := changed[k]; !kept && was != nil {
			delete(current, k)
		}
	}
	for k, is := range changed {
		was := base[k]
		if reflect.DeepEqual(was, is) {
			continue
		}
		isMap, ok := is.(map[string]any)
		if !ok {
			current[k] = is
			continue
		}
		wasMap, _ := was.(map[string]any)
		currentMap, ok := current[k].(map[string]any)
		if !ok {
			currentMap = map[string]any{}
			current[k] = currentMap
		}
		merge(wasMap, isMap, currentMap)
	}
}
