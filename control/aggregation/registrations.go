package aggregation

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
)

// Priorities of Local APIServices. Those of definitions are upstream's. The priority of built-in groups decreases in
// the order of discovery from that of upstream's first group.
const (
	firstGroupPriority        = 18000
	groupPriorityStep         = 50
	builtInVersionPriority    = 15
	definitionGroupPriority   = 1000
	definitionVersionPriority = 100
)

func localAPIService(gv schema.GroupVersion, groupPriority, versionPriority int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
		Spec: apiregistrationv1.APIServiceSpec{Group: gv.Group, Version: gv.Version,
			GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority},
	}
}

// builtInAPIServices returns the APIServices of built-in group versions, which are in the order of discovery.
func builtInAPIServices(versions []schema.GroupVersion) (out []*apiregistrationv1.APIService) {
	groups, versionsOf := map[string]int32{}, map[string]int32{}
	for _, gv := range versions {
		if _, known := groups[gv.Group]; !known {
			groups[gv.Group] = firstGroupPriority - groupPriorityStep*int32(len(groups))
		}
		out = append(out, localAPIService(gv, groups[gv.Group], builtInVersionPriority-versionsOf[gv.Group]))
		versionsOf[gv.Group]++
	}
	return out
}

// registerLocal registers the APIServices of the built-in group versions, and those of definitions as long as a
// definition serves the version.
func (s *Server) registerLocal(with autoregister.AutoAPIServiceRegistration) (
	cache.ResourceEventHandlerRegistration, error) {
	for _, one := range builtInAPIServices(s.BuiltIn) {
		with.AddAPIServiceToSyncOnStart(one)
	}
	update := func(obj any) {
		for _, gv := range servedVersions(obj) {
			switch {
			case slices.Contains(s.BuiltIn, gv):
			case slices.ContainsFunc(s.Definitions.GetStore().List(), func(other any) bool {
				return slices.Contains(servedVersions(other), gv)
			}):
				with.AddAPIServiceToSync(localAPIService(gv, definitionGroupPriority, definitionVersionPriority))
			default:
				with.RemoveAPIServiceToSync(gv.Version + "." + gv.Group)
			}
		}
	}
	registration, err := s.Definitions.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: update,
		UpdateFunc: func(old, obj any) {
			update(old)
			update(obj)
		},
		DeleteFunc: update,
	})
	if err != nil {
		return nil, fmt.Errorf("watch definitions: %w", err)
	}
	return registration, nil
}

// servedVersions returns the group versions of a definition, which may be the last known state of a deleted one.
func servedVersions(obj any) (out []schema.GroupVersion) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok {
		return nil
	}
	for _, v := range crd.Spec.Versions {
		if v.Served {
			out = append(out, schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
		}
	}
	return out
}
