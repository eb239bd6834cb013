package registry

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

func core() []*Kind { return slices.Concat(needed(), besides()) }

// needed are the kinds of the core group without which no pod runs.
func needed() []*Kind {
	v1 := corev1.SchemeGroupVersion
	return []*Kind{
		{
			Version: v1, Resource: "namespaces", Singular: "namespace", Short: []string{"ns"}, Cluster: true,
			New: func() runtime.Object { return &corev1.Namespace{} }, NewList: func() runtime.Object { return &corev1.NamespaceList{} },
			Status: true, Cached: true, FieldNames: []string{"status.phase", "name"},
			Fields: selectable(func(n *corev1.Namespace) fields.Set {
				return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
			}),
		},
		{
			Version: v1, Resource: "pods", Singular: "pod", Short: []string{"po"}, All: true,
			New: func() runtime.Object { return &corev1.Pod{} }, NewList: func() runtime.Object { return &corev1.PodList{} },
			Status: true, Generation: true, Cached: true,
			IndexField: "spec.nodeName",
			FieldNames: []string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
				"status.phase", "status.podIP", "status.nominatedNodeName"},
			Fields:         selectable(podFields),
			Default:        func(obj runtime.Object) { podspec.SetDefaults(As[*corev1.Pod](obj)) },
			Validate:       func(obj runtime.Object) field.ErrorList { return podspec.ValidateCreate(As[*corev1.Pod](obj)) },
			ValidateUpdate: changed(podspec.ValidateUpdate),
			ValidateStatus: changed(podspec.ValidateStatusUpdate),
		},
		{
			Version: v1, Resource: "nodes", Singular: "node", Short: []string{"no"}, Cluster: true,
			New: func() runtime.Object { return &corev1.Node{} }, NewList: func() runtime.Object { return &corev1.NodeList{} },
			Status: true, StatusAtBirth: true, Cached: true, Prefix: "minions", FieldNames: []string{"spec.unschedulable"},
			Fields: selectable(func(n *corev1.Node) fields.Set {
				return fields.Set{"spec.unschedulable": yesNo(n.Spec.Unschedulable)}
			}),
		},
		{
			Version: v1, Resource: "configmaps", Singular: "configmap", Short: []string{"cm"}, Cached: true,
			New: func() runtime.Object { return &corev1.ConfigMap{} }, NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
		},
		{
			Version: v1, Resource: "secrets", Singular: "secret", Cached: true, FieldNames: []string{"type"},
			New: func() runtime.Object { return &corev1.Secret{} }, NewList: func() runtime.Object { return &corev1.SecretList{} },
			Fields: selectable(func(s *corev1.Secret) fields.Set { return fields.Set{"type": string(s.Type)} }),
		},
		{
			Version: v1, Resource: "serviceaccounts", Singular: "serviceaccount", Short: []string{"sa"}, Cached: true,
			New: func() runtime.Object { return &corev1.ServiceAccount{} }, NewList: func() runtime.Object { return &corev1.ServiceAccountList{} },
		},
	}
}

// besides are the other kinds of the core group.
func besides() []*Kind {
	v1 := corev1.SchemeGroupVersion
	return []*Kind{
		{
			Version: v1, Resource: "services", Singular: "service", Short: []string{"svc"}, All: true, UpsertByPut: true,
			New: func() runtime.Object { return &corev1.Service{} }, NewList: func() runtime.Object { return &corev1.ServiceList{} },
			Status: true, Cached: true, Prefix: "services/specs", FieldNames: []string{"spec.clusterIP", "spec.type"},
			Fields: selectable(func(s *corev1.Service) fields.Set {
				return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
			}),
			Warn: warnService,
		},
		{
			Version: v1, Resource: "endpoints", Singular: "endpoints", Short: []string{"ep"}, Prefix: "services/endpoints", UpsertByPut: true,
			New: func() runtime.Object { return &corev1.Endpoints{} }, NewList: func() runtime.Object { return &corev1.EndpointsList{} }, //nolint:staticcheck // served as long as upstream serves it
		},
		{
			Version: v1, Resource: "podtemplates", Singular: "podtemplate", Generation: true,
			New: func() runtime.Object { return &corev1.PodTemplate{} }, NewList: func() runtime.Object { return &corev1.PodTemplateList{} },
		},
		{
			Version: v1, Resource: "limitranges", Singular: "limitrange", Short: []string{"limits"}, UpsertByPut: true,
			New: func() runtime.Object { return &corev1.LimitRange{} }, NewList: func() runtime.Object { return &corev1.LimitRangeList{} },
		},
		{
			Version: v1, Resource: "resourcequotas", Singular: "resourcequota", Short: []string{"quota"}, Status: true,
			New: func() runtime.Object { return &corev1.ResourceQuota{} }, NewList: func() runtime.Object { return &corev1.ResourceQuotaList{} },
		},
		{
			Version: v1, Resource: "persistentvolumes", Singular: "persistentvolume", Short: []string{"pv"}, Cluster: true, Status: true,
			New: func() runtime.Object { return &corev1.PersistentVolume{} }, NewList: func() runtime.Object { return &corev1.PersistentVolumeList{} },
			Unacted: storedOnly("persistent volumes"), FieldNames: []string{"name"},
			Fields: selectable(func(v *corev1.PersistentVolume) fields.Set { return fields.Set{"name": v.Name} }),
		},
		{
			Version: v1, Resource: "persistentvolumeclaims", Singular: "persistentvolumeclaim", Short: []string{"pvc"}, Status: true,
			New: func() runtime.Object { return &corev1.PersistentVolumeClaim{} }, NewList: func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
			Unacted: storedOnly("persistent volume claims"), FieldNames: []string{"name"},
			Fields: selectable(func(c *corev1.PersistentVolumeClaim) fields.Set { return fields.Set{"name": c.Name} }),
		},
		{
			Version: v1, Resource: "replicationcontrollers", Singular: "replicationcontroller", Short: []string{"rc"}, All: true,
			New: func() runtime.Object { return &corev1.ReplicationController{} }, NewList: func() runtime.Object { return &corev1.ReplicationControllerList{} },
			Status: true, Generation: true, Orphan: true, Scale: replicationControllerScale,
			FieldNames: []string{"status.replicas"}, Fields: selectable(replicationControllerFields), Prefix: "controllers",
		},
	}
}

// changed lets rules of changed pods stand where the table wants any object.
func changed(judge func(pod, old *corev1.Pod) field.ErrorList) func(obj, old runtime.Object) field.ErrorList {
	return func(obj, old runtime.Object) field.ErrorList {
		return judge(As[*corev1.Pod](obj), As[*corev1.Pod](old))
	}
}
