package apiserver

import (
	"maps"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// RuntimeHandlers returns the runtime handlers by RuntimeClass name, as the server has them, or as
// the pods of the previous run used them. The caller must not change it. It is safe for concurrent
// use.
func (s *Source) RuntimeHandlers() map[string]string { return *s.handlers.Load() }

// publishRuntimeClasses publishes the RuntimeClasses to other goroutines.
func (s *Source) publishRuntimeClasses() {
	now := maps.Clone(s.classes)
	s.handlers.Store(&now)
}

// previousRuntimeClasses returns the RuntimeClasses used by pods of the previous run. A node that starts
// without a reachable server needs them.
func previousRuntimeClasses(known []PreviousPod) map[string]string {
	out := map[string]string{}
	for _, k := range known {
		for key, o := range k.Objects {
			if key.Kind == plan.RuntimeClass && o.Handler != "" {
				out[key.Name] = o.Handler
			}
		}
	}
	return out
}

// watchRuntimeClasses watches the RuntimeClasses.
func (s *Source) watchRuntimeClasses() {
	all := func(f func()) {
		s.do(func() {
			f()
			s.publishRuntimeClasses()
			for key, u := range s.objects {
				if key.Kind == plan.RuntimeClass {
					s.class(key, u)
				}
			}
		})
	}
	handler := func(o runtime.Object) (name, handler string) {
		c, _ := o.(*nodev1.RuntimeClass)
		return c.Name, c.Handler
	}
	s.watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.RuntimeClasses,
		OnReplace: func(list []runtime.Object) {
			all(func() {
				s.classes = make(map[string]string, len(list))
				for _, o := range list {
					name, to := handler(o)
					s.classes[name] = to
				}
			})
		},
		OnUpdate: func(o runtime.Object) {
			all(func() {
				name, to := handler(o)
				s.classes[name] = to
			})
		},
		OnDelete: func(o runtime.Object) {
			all(func() {
				name, _ := handler(o)
				delete(s.classes, name)
			})
		},
		OnError: func(err error) { s.do(func() { s.recordError(plan.RuntimeClass, err) }) },
	})
}

// class resolves a RuntimeClass.
func (s *Source) class(key source.ObjectKey, u *object) {
	if s.classes == nil {
		return
	}
	to, known := s.classes[key.Name]
	if !known {
		s.set(u, plan.Object{Version: plan.Version{Missing: true}})
		return
	}
	s.set(u, plan.Object{Handler: to, Version: plan.Version{Version: to}})
}
