package agent

import (
	"maps"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/podspec"
)

// objects holds the ConfigMaps and Secrets of all sources. The map is replaced and never
// modified, so any goroutine may read it.
type objects struct {
	current  atomic.Pointer[map[source.ObjectKey]plan.Object]
	bySource map[string]map[source.ObjectKey]plan.Object // the agent's goroutine only
}

func newObjects() *objects {
	return &objects{bySource: map[string]map[source.ObjectKey]plan.Object{}}
}

// replace replaces the objects of one source and reports whether anything changed.
func (o *objects) replace(snap *source.Snapshot) bool {
	same := func(a, b plan.Object) bool { return a.Version == b.Version }
	if maps.EqualFunc(o.bySource[snap.Source], snap.Objects, same) {
		return false
	}
	o.bySource[snap.Source] = snap.Objects
	all := make(map[source.ObjectKey]plan.Object, len(snap.Objects))
	for _, objs := range o.bySource {
		maps.Copy(all, objs)
	}
	o.current.Store(&all)
	return true
}

// Of returns the objects that a pod references, all from one version of the map.
func (o *objects) Of(pod *corev1.Pod) plan.Objects {
	out := plan.Objects{}
	all := o.current.Load()
	for _, r := range podspec.References(pod) {
		ref := plan.Ref{Kind: plan.RefKind(r.Kind), Name: r.Name}
		out[ref] = plan.Object{Version: plan.Version{Missing: true}}
		if all == nil {
			continue
		}
		if obj, ok := (*all)[source.KeyOf(pod, ref)]; ok {
			out[ref] = obj
		}
	}
	return out
}

// persistent returns the objects of a pod that must survive a reboot without a
// reachable API server. Those of manifest files are in the files.
func (o *objects) persistent(pod *corev1.Pod) plan.Objects {
	if !podspec.FromAPIServer(pod) {
		return nil
	}
	return o.Of(pod)
}

// ReferencedObjects returns the objects that a pod references, with overrides in place of
// the current ones.
func (a *Agent) ReferencedObjects(pod *corev1.Pod, overrides map[source.ObjectKey]plan.Object) plan.Objects {
	out := a.desired.objects.Of(pod)
	for ref := range out {
		if obj, ok := overrides[source.KeyOf(pod, ref)]; ok {
			out[ref] = obj
		}
	}
	return out
}
