package registry

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func schedulingKinds() []*Kind {
	return []*Kind{
		{
			GroupVersion: coordinationv1.SchemeGroupVersion, Resource: "leases", Singular: "lease", Cached: true,
			AllowCreateOnUpdate: true, RequireResourceVersion: true,
			New:     func() runtime.Object { return &coordinationv1.Lease{} },
			NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },
		},
		{
			GroupVersion: schedulingv1.SchemeGroupVersion, Resource: "priorityclasses", Singular: "priorityclass",
			ShortNames: []string{"pc"}, ClusterScoped: true,
			// Kubernetes does not count the changes.
			Prepare: func(_ context.Context, obj runtime.Object) { setGeneration(obj, 1) },
			New:     func() runtime.Object { return &schedulingv1.PriorityClass{} },
			NewList: func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		},
		{
			GroupVersion: nodev1.SchemeGroupVersion, Resource: "runtimeclasses", Singular: "runtimeclass",
			ClusterScoped:       true,
			AllowCreateOnUpdate: true, RequireResourceVersion: true,
			New:     func() runtime.Object { return &nodev1.RuntimeClass{} },
			NewList: func() runtime.Object { return &nodev1.RuntimeClassList{} },
		},
	}
}

func policyKinds() []*Kind {
	return []*Kind{{
		GroupVersion: policyv1.SchemeGroupVersion, Resource: "poddisruptionbudgets", Singular: "poddisruptionbudget",
		ShortNames: []string{"pdb"},
		New:        func() runtime.Object { return &policyv1.PodDisruptionBudget{} },
		NewList:    func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		Status:     true, Generation: true, RequireResourceVersion: true,
	}}
}

func networkKinds() []*Kind {
	return []*Kind{
		{
			GroupVersion: discoveryv1.SchemeGroupVersion, Resource: "endpointslices", Singular: "endpointslice",
			Cached: true, Generation: true, GenerationMetadata: metav1.Object.GetLabels,
			New:     func() runtime.Object { return &discoveryv1.EndpointSlice{} },
			NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		},
		{
			GroupVersion: networkingv1.SchemeGroupVersion, Resource: "networkpolicies", Singular: "networkpolicy",
			ShortNames: []string{"netpol"}, Cached: true, Generation: true,
			New:     func() runtime.Object { return &networkingv1.NetworkPolicy{} },
			NewList: func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		},
		{
			GroupVersion: networkingv1.SchemeGroupVersion, Resource: "ingresses", Singular: "ingress",
			ShortNames: []string{"ing"}, Status: true, Generation: true,
			New:     func() runtime.Object { return &networkingv1.Ingress{} },
			NewList: func() runtime.Object { return &networkingv1.IngressList{} },
		},
		{
			GroupVersion: networkingv1.SchemeGroupVersion, Resource: "ingressclasses", Singular: "ingressclass",
			ClusterScoped: true, Generation: true,
			New:     func() runtime.Object { return &networkingv1.IngressClass{} },
			NewList: func() runtime.Object { return &networkingv1.IngressClassList{} },
		},
		{
			GroupVersion: networkingv1.SchemeGroupVersion, Resource: "servicecidrs", Singular: "servicecidr",
			ClusterScoped: true, Status: true,
			New:      func() runtime.Object { return &networkingv1.ServiceCIDR{} },
			NewList:  func() runtime.Object { return &networkingv1.ServiceCIDRList{} },
			Warnings: serviceCIDRWarnings,
		},
		{
			GroupVersion: networkingv1.SchemeGroupVersion, Resource: "ipaddresses", Singular: "ipaddress",
			ShortNames: []string{"ip"}, ClusterScoped: true,
			New:               func() runtime.Object { return &networkingv1.IPAddress{} },
			NewList:           func() runtime.Object { return &networkingv1.IPAddressList{} },
			StoredOnlyWarning: storedOnlyWarning("IP addresses"),
		},
	}
}

func storageKinds() []*Kind {
	v1 := storagev1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: v1, Resource: "storageclasses", Singular: "storageclass", ShortNames: []string{"sc"},
			ClusterScoped: true,
			New:           func() runtime.Object { return &storagev1.StorageClass{} },
			NewList:       func() runtime.Object { return &storagev1.StorageClassList{} },
		},
		{
			GroupVersion: v1, Resource: "volumeattributesclasses", Singular: "volumeattributesclass",
			ShortNames: []string{"vac"}, ClusterScoped: true,
			New:     func() runtime.Object { return &storagev1.VolumeAttributesClass{} },
			NewList: func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
		},
		{
			GroupVersion: v1, Resource: "csinodes", Singular: "csinode", ClusterScoped: true,
			RequireResourceVersion: true,
			New:                    func() runtime.Object { return &storagev1.CSINode{} },
			NewList:                func() runtime.Object { return &storagev1.CSINodeList{} },
		},
		{
			GroupVersion: v1, Resource: "csidrivers", Singular: "csidriver", ClusterScoped: true,
			Generation: true, RequireResourceVersion: true,
			// Kubernetes counts the changes from 0.
			Prepare: func(_ context.Context, obj runtime.Object) { setGeneration(obj, 0) },
			New:     func() runtime.Object { return &storagev1.CSIDriver{} },
			NewList: func() runtime.Object { return &storagev1.CSIDriverList{} },
		},
		{
			GroupVersion: v1, Resource: "volumeattachments", Singular: "volumeattachment", ClusterScoped: true,
			Status:                 true,
			RequireResourceVersion: true,
			New:                    func() runtime.Object { return &storagev1.VolumeAttachment{} },
			NewList:                func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		},
		{
			GroupVersion: v1, Resource: "csistoragecapacities", Singular: "csistoragecapacity",
			RequireResourceVersion: true,
			New:                    func() runtime.Object { return &storagev1.CSIStorageCapacity{} },
			NewList:                func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
		},
	}
}

// migrationKinds returns the kinds of storagemigration.k8s.io.
func migrationKinds() []*Kind {
	return []*Kind{{
		GroupVersion: storagemigrationv1.SchemeGroupVersion, Resource: "storageversionmigrations",
		Singular: "storageversionmigration", ClusterScoped: true, Status: true, PrepareStatus: keepLabels,
		New:     func() runtime.Object { return &storagemigrationv1.StorageVersionMigration{} },
		NewList: func() runtime.Object { return &storagemigrationv1.StorageVersionMigrationList{} },
	}}
}

// eventKinds returns the kinds of events, which two groups serve from one store, see
// control/scheme.
func eventKinds() []*Kind {
	row := func() Kind {
		return Kind{
			Resource: "events", Singular: "event", ShortNames: []string{"ev"},
			New: func() runtime.Object {
				return &corev1.Event{}
			}, NewList: func() runtime.Object { return &corev1.EventList{} },
			TTL: time.Hour, AllowCreateOnUpdate: true, Prefix: "events", Fields: fieldsFunc(eventFields),
		}
	}
	core, group := row(), row()
	core.GroupVersion, core.FieldNames = corev1.SchemeGroupVersion, coreEventFields
	group.GroupVersion, group.FieldNames = eventsv1.SchemeGroupVersion, groupEventFields
	return []*Kind{&core, &group}
}
