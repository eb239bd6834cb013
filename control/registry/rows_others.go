package registry

import (
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func scheduling() []*Kind {
	return []*Kind{
		{
			Version: coordinationv1.SchemeGroupVersion, Resource: "leases", Singular: "lease", Cached: true, UpsertByPut: true, VersionedPut: true,
			New: func() runtime.Object { return &coordinationv1.Lease{} }, NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },
		},
		{
			Version: schedulingv1.SchemeGroupVersion, Resource: "priorityclasses", Singular: "priorityclass", Short: []string{"pc"}, Cluster: true,
			New: func() runtime.Object { return &schedulingv1.PriorityClass{} }, NewList: func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		},
		{
			Version: nodev1.SchemeGroupVersion, Resource: "runtimeclasses", Singular: "runtimeclass", Cluster: true, UpsertByPut: true, VersionedPut: true,
			New: func() runtime.Object { return &nodev1.RuntimeClass{} }, NewList: func() runtime.Object { return &nodev1.RuntimeClassList{} },
		},
	}
}

func disruption() []*Kind {
	return []*Kind{{
		Version: policyv1.SchemeGroupVersion, Resource: "poddisruptionbudgets", Singular: "poddisruptionbudget", Short: []string{"pdb"},
		New: func() runtime.Object { return &policyv1.PodDisruptionBudget{} }, NewList: func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} },
		Status: true, Generation: true, VersionedPut: true,
	}}
}

func network() []*Kind {
	return []*Kind{
		{
			Version: discoveryv1.SchemeGroupVersion, Resource: "endpointslices", Singular: "endpointslice", Generation: true, Counted: metav1.Object.GetLabels,
			New: func() runtime.Object { return &discoveryv1.EndpointSlice{} }, NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		},
		{
			Version: networkingv1.SchemeGroupVersion, Resource: "networkpolicies", Singular: "networkpolicy", Short: []string{"netpol"}, Generation: true,
			New: func() runtime.Object { return &networkingv1.NetworkPolicy{} }, NewList: func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
			Unacted: storedOnly("network policies"),
		},
	}
}

func storageKinds() []*Kind {
	v1 := storagev1.SchemeGroupVersion
	return []*Kind{
		{
			Version: v1, Resource: "storageclasses", Singular: "storageclass", Short: []string{"sc"}, Cluster: true,
			New: func() runtime.Object { return &storagev1.StorageClass{} }, NewList: func() runtime.Object { return &storagev1.StorageClassList{} },
			Unacted: storedOnly("storage classes"),
		},
		{
			Version: v1, Resource: "volumeattributesclasses", Singular: "volumeattributesclass", Short: []string{"vac"}, Cluster: true,
			New: func() runtime.Object { return &storagev1.VolumeAttributesClass{} }, NewList: func() runtime.Object { return &storagev1.VolumeAttributesClassList{} },
			Unacted: storedOnly("volume attributes classes"),
		},
		{
			Version: v1, Resource: "csinodes", Singular: "csinode", Cluster: true, VersionedPut: true,
			New: func() runtime.Object { return &storagev1.CSINode{} }, NewList: func() runtime.Object { return &storagev1.CSINodeList{} },
			Unacted: storedOnly("CSI nodes"),
		},
		{
			Version: v1, Resource: "csidrivers", Singular: "csidriver", Cluster: true, VersionedPut: true,
			New: func() runtime.Object { return &storagev1.CSIDriver{} }, NewList: func() runtime.Object { return &storagev1.CSIDriverList{} },
			Unacted: storedOnly("CSI drivers"),
		},
		{
			Version: v1, Resource: "volumeattachments", Singular: "volumeattachment", Cluster: true, Status: true, VersionedPut: true,
			New: func() runtime.Object { return &storagev1.VolumeAttachment{} }, NewList: func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
			Unacted: storedOnly("volume attachments"),
		},
		{
			Version: v1, Resource: "csistoragecapacities", Singular: "csistoragecapacity", VersionedPut: true,
			New: func() runtime.Object { return &storagev1.CSIStorageCapacity{} }, NewList: func() runtime.Object { return &storagev1.CSIStorageCapacityList{} },
			Unacted: storedOnly("CSI storage capacities"),
		},
	}
}

// events are one store seen through two groups, see control/scheme.
func events() []*Kind {
	row := func() Kind {
		return Kind{
			Resource: "events", Singular: "event", Short: []string{"ev"},
			New: func() runtime.Object { return &corev1.Event{} }, NewList: func() runtime.Object { return &corev1.EventList{} },
			TTL: time.Hour, UpsertByPut: true, Prefix: "events", Fields: selectable(eventFields),
		}
	}
	core, group := row(), row()
	core.Version, core.FieldNames = corev1.SchemeGroupVersion, coreEventFields
	group.Version, group.FieldNames = eventsv1.SchemeGroupVersion, groupEventFields
	return []*Kind{&core, &group}
}
