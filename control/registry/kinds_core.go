package registry

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

func coreKinds() []*Kind { return slices.Concat(podKinds(), otherCoreKinds()) }

// podKinds returns the kinds of the core group that are needed to run pods.
func podKinds() []*Kind {
	v1 := corev1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: v1, Resource: "namespaces", Singular: "namespace", ShortNames: []string{"ns"},
			ClusterScoped: true,
			New:           func() runtime.Object { return &corev1.Namespace{} },
			NewList:       func() runtime.Object { return &corev1.NamespaceList{} },
			Status:        true, Cached: true, FieldNames: []string{"status.phase", "name"},
			Fields: fieldsFunc(func(n *corev1.Namespace) fields.Set {
				return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
			}),
		},
		{
			GroupVersion: v1, Resource: "pods", Singular: "pod", ShortNames: []string{"po"}, InAllCategory: true,
			New: func() runtime.Object {
				return &corev1.Pod{}
			}, NewList: func() runtime.Object { return &corev1.PodList{} },
			Status: true, Generation: true, Cached: true,
			IndexField: "spec.nodeName",
			FieldNames: []string{
				"spec.nodeName",
				"spec.restartPolicy",
				"spec.schedulerName",
				"spec.serviceAccountName",
				"spec.hostNetwork",
				"status.phase",
				"status.podIP",
				"status.nominatedNodeName",
			},
			Fields:  fieldsFunc(podFields),
			Default: func(obj runtime.Object) { podspec.SetDefaults(MustCast[*corev1.Pod](obj)) },
			Validate: func(obj runtime.Object) field.ErrorList {
				return podspec.ValidateCreate(MustCast[*corev1.Pod](obj))
			},
			ValidateUpdate: podUpdateFunc(podspec.ValidateUpdate),
			ValidateStatus: podUpdateFunc(podspec.ValidateStatusUpdate),
		},
		{
			GroupVersion: v1, Resource: "nodes", Singular: "node", ShortNames: []string{"no"}, ClusterScoped: true,
			New: func() runtime.Object {
				return &corev1.Node{}
			}, NewList: func() runtime.Object { return &corev1.NodeList{} },
			Status: true, StatusOnCreate: true, Cached: true, Prefix: "minions",
			FieldNames: []string{"spec.unschedulable"},
			Fields: fieldsFunc(func(n *corev1.Node) fields.Set {
				return fields.Set{"spec.unschedulable": yesNo(n.Spec.Unschedulable)}
			}),
		},
		{
			GroupVersion: v1, Resource: "configmaps", Singular: "configmap", ShortNames: []string{"cm"}, Cached: true,
			New:     func() runtime.Object { return &corev1.ConfigMap{} },
			NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		},
		{
			GroupVersion: v1, Resource: "secrets", Singular: "secret", Cached: true, FieldNames: []string{"type"},
			New:     func() runtime.Object { return &corev1.Secret{} },
			NewList: func() runtime.Object { return &corev1.SecretList{} },
			Fields:  fieldsFunc(func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }),
		},
		{
			GroupVersion: v1, Resource: "serviceaccounts", Singular: "serviceaccount", ShortNames: []string{"sa"},
			Cached:  true,
			New:     func() runtime.Object { return &corev1.ServiceAccount{} },
			NewList: func() runtime.Object { return &corev1.ServiceAccountList{} },
		},
	}
}

// otherCoreKinds returns the other kinds of the core group.
func otherCoreKinds() []*Kind {
	v1 := corev1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: v1, Resource: "services", Singular: "service", ShortNames: []string{"svc"},
			InAllCategory:       true,
			AllowCreateOnUpdate: true,
			New:                 func() runtime.Object { return &corev1.Service{} },
			NewList:             func() runtime.Object { return &corev1.ServiceList{} },
			Status:              true, Cached: true, Prefix: "services/specs", StatusSetsFinalizers: true,
			FieldNames: []string{"spec.clusterIP", "spec.type"},
			Fields: fieldsFunc(func(s *corev1.Service) fields.Set {
				return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
			}),
		},
		{
			GroupVersion: v1, Resource: "endpoints", Singular: "endpoints", ShortNames: []string{"ep"},
			Prefix: "services/endpoints", AllowCreateOnUpdate: true,
			//nolint:staticcheck // served as long as upstream serves it
			New:     func() runtime.Object { return &corev1.Endpoints{} },
			NewList: func() runtime.Object { return &corev1.EndpointsList{} },
		},
		{
			GroupVersion: v1, Resource: "podtemplates", Singular: "podtemplate", Generation: true,
			New:     func() runtime.Object { return &corev1.PodTemplate{} },
			NewList: func() runtime.Object { return &corev1.PodTemplateList{} },
		},
		{
			GroupVersion: v1, Resource: "limitranges", Singular: "limitrange", ShortNames: []string{"limits"},
			AllowCreateOnUpdate: true,
			New:                 func() runtime.Object { return &corev1.LimitRange{} },
			NewList:             func() runtime.Object { return &corev1.LimitRangeList{} },
		},
		{
			GroupVersion: v1, Resource: "resourcequotas", Singular: "resourcequota", ShortNames: []string{"quota"},
			Status:  true,
			New:     func() runtime.Object { return &corev1.ResourceQuota{} },
			NewList: func() runtime.Object { return &corev1.ResourceQuotaList{} },
		},
		{
			GroupVersion: v1, Resource: "persistentvolumes", Singular: "persistentvolume", ShortNames: []string{"pv"},
			ClusterScoped: true, Status: true, Prepare: prepareVolume,
			PrepareStatus: prepareVolumeStatus,
			New:           func() runtime.Object { return &corev1.PersistentVolume{} },
			NewList:       func() runtime.Object { return &corev1.PersistentVolumeList{} },
			FieldNames:    []string{"name"},
			Fields: fieldsFunc(func(v *corev1.PersistentVolume) fields.Set {
				return fields.Set{"name": v.Name}
			}),
		},
		{
			GroupVersion: v1, Resource: "persistentvolumeclaims", Singular: "persistentvolumeclaim",
			ShortNames: []string{"pvc"}, Status: true,
			New:        func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
			NewList:    func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
			FieldNames: []string{"name"},
			Fields: fieldsFunc(func(c *corev1.PersistentVolumeClaim) fields.Set {
				return fields.Set{"name": c.Name}
			}),
		},
		{
			GroupVersion: v1, Resource: "replicationcontrollers", Singular: "replicationcontroller",
			ShortNames: []string{"rc"}, InAllCategory: true,
			New:     func() runtime.Object { return &corev1.ReplicationController{} },
			NewList: func() runtime.Object { return &corev1.ReplicationControllerList{} },
			Status:  true, Generation: true, OrphanDependents: true, Scale: replicationControllerScale,
			FieldNames: []string{"status.replicas"}, Fields: fieldsFunc(replicationControllerFields),
			Prefix: "controllers",
		},
	}
}

// podUpdateFunc adapts a validation function of pods to any object.
func podUpdateFunc(validate func(pod, old *corev1.Pod) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return func(obj, old runtime.Object) field.ErrorList {
		return validate(MustCast[*corev1.Pod](obj), MustCast[*corev1.Pod](old))
	}
}

// prepareVolume records when a new volume became Pending.
func prepareVolume(_ context.Context, obj runtime.Object) {
	now := metav1.Now()
	MustCast[*corev1.PersistentVolume](obj).Status = corev1.PersistentVolumeStatus{
		Phase: corev1.VolumePending, LastPhaseTransitionTime: &now}
}

// prepareVolumeStatus records when the phase of a volume changes, unless the client does. A client that does not know
// the time keeps it.
func prepareVolumeStatus(_ context.Context, obj, old runtime.Object) {
	status, before := &MustCast[*corev1.PersistentVolume](obj).Status, MustCast[*corev1.PersistentVolume](old).Status
	at := &status.LastPhaseTransitionTime
	switch {
	case status.Phase == before.Phase && *at == nil:
		*at = before.LastPhaseTransitionTime
	case status.Phase != before.Phase && (*at == nil || (*at).Equal(before.LastPhaseTransitionTime)):
		now := metav1.Now()
		*at = &now
	}
}
