package apiserver

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
	"berth/services"
)

// serviceCache holds the Services of the cluster by namespace and name.
type serviceCache struct {
	byNamespace map[string]map[string]*services.Service
	read        bool
}

// set adds or replaces a Service.
func (c *serviceCache) set(svc *services.Service) {
	if c.byNamespace[svc.Namespace] == nil {
		c.byNamespace[svc.Namespace] = map[string]*services.Service{}
	}
	c.byNamespace[svc.Namespace][svc.Name.Name] = svc
}

// watchServices watches the Services. Their addresses are part of the environment of pods.
func (s *Source) watchServices() {
	s.watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.Services, Transform: trimService,
		OnReplace: func(list []runtime.Object) {
			all := make([]*services.Service, 0, len(list))
			for _, o := range list {
				all = append(all, compactService(o))
			}
			s.opt.Services.ReplaceServices(all)
			s.do(func() {
				s.services = serviceCache{byNamespace: map[string]map[string]*services.Service{}, read: true}
				for _, svc := range all {
					s.services.set(svc)
				}
				s.environments("")
			})
		},
		OnUpdate: func(o runtime.Object) {
			svc := compactService(o)
			s.opt.Services.SetService(svc)
			s.do(func() {
				s.services.set(svc)
				s.serviceChanged(svc)
			})
		},
		OnDelete: func(o runtime.Object) {
			svc := compactService(o)
			s.opt.Services.DeleteService(svc.Name)
			s.do(func() {
				delete(s.services.byNamespace[svc.Namespace], svc.Name.Name)
				s.serviceChanged(svc)
			})
		},
		OnError: func(err error) { s.do(func() { s.recordError(plan.Services, err) }) },
	})
}

// watchEndpointSlices watches the EndpointSlices for the service proxy and the DNS server, when they
// are needed.
func (s *Source) watchEndpointSlices() {
	select {
	case <-s.ctx.Done():
		return
	case <-s.opt.EndpointsNeeded:
	}
	compact := func(o runtime.Object) *services.Slice {
		es, _ := o.(*discoveryv1.EndpointSlice)
		return services.FromEndpointSlice(es)
	}
	key := func(o runtime.Object) services.SliceKey {
		es, _ := o.(*discoveryv1.EndpointSlice)
		return services.SliceKey{Namespace: es.Namespace, Name: es.Name}
	}
	var failed atomic.Bool
	s.opt.Client.Watch(s.ctx, apiclient.WatchOptions{
		Resource: apiclient.EndpointSlices, Transform: trimEndpointSlice,
		OnReplace: func(list []runtime.Object) {
			if failed.Swap(false) {
				s.opt.Log.Info("endpoint watch recovered", "endpointSlices", len(list))
			}
			all := make([]*services.Slice, 0, len(list))
			for _, o := range list {
				if slice := compact(o); slice != nil {
					all = append(all, slice)
				}
			}
			s.opt.Services.ReplaceSlices(all)
		},
		OnUpdate: func(o runtime.Object) {
			if slice := compact(o); slice != nil {
				s.opt.Services.SetSlice(slice)
			} else {
				s.opt.Services.DeleteSlice(key(o))
			}
		},
		OnDelete: func(o runtime.Object) { s.opt.Services.DeleteSlice(key(o)) },
		OnError: func(err error) {
			if !failed.Swap(true) {
				s.opt.Log.Warn("endpoint watch failed, the last known endpoints remain in use", "err", err)
			}
		},
	})
}

// trimService keeps only the fields of a Service that are used.
func trimService(o runtime.Object) {
	if svc, ok := o.(*corev1.Service); ok {
		services.TrimService(svc)
	}
}

// trimEndpointSlice removes the managed fields, which are larger than the rest, and the owners.
func trimEndpointSlice(o runtime.Object) {
	if es, ok := o.(*discoveryv1.EndpointSlice); ok {
		es.ManagedFields, es.OwnerReferences = nil, nil
	}
}

// compactService returns a Service in compact form.
func compactService(o runtime.Object) *services.Service {
	full, _ := o.(*corev1.Service)
	return services.FromService(full)
}

// recordError records the error for all unresolved objects of a kind.
func (s *Source) recordError(kind plan.RefKind, err error) {
	for key, u := range s.objects {
		if key.Kind == kind && !u.resolved {
			u.lastErr = errorText(err)
		}
	}
}

// serviceChanged updates the environments that a Service is part of.
func (s *Source) serviceChanged(svc *services.Service) {
	if isMaster(svc) {
		s.environments("")
	} else {
		s.environments(svc.Namespace)
	}
}

// environments updates the environments of the namespaces in use, or of one.
func (s *Source) environments(namespace string) {
	for key, u := range s.objects {
		if key.Kind == plan.Services && (namespace == "" || namespace == key.Namespace) {
			s.environment(key, u)
		}
	}
}

// environment computes the environment that Services define for the pods of a namespace.
func (s *Source) environment(key source.ObjectKey, u *object) {
	if !s.services.read {
		return
	}
	var linked map[string]*services.Service
	if key.Name == podspec.LinkedServices {
		linked = s.services.byNamespace[key.Namespace]
	}
	env, version := services.Environment(linked,
		s.services.byNamespace[services.Kubernetes.Namespace][services.Kubernetes.Name])
	s.set(u, plan.Object{Env: env, Version: plan.Version{Version: version}})
}

func isMaster(svc *services.Service) bool { return svc.Name == services.Kubernetes }
