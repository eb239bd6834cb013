package registry

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

func workloads() []*Kind {
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	return []*Kind{
		{
			Version: apps, Resource: "deployments", Singular: "deployment", Short: []string{"deploy"}, All: true,
			New: func() runtime.Object { return &appsv1.Deployment{} }, NewList: func() runtime.Object { return &appsv1.DeploymentList{} },
			Status: true, Generation: true, Counted: metav1.Object.GetAnnotations, Scale: deploymentScale, Unacted: storedOnly("deployments"),
		},
		{
			Version: apps, Resource: "replicasets", Singular: "replicaset", Short: []string{"rs"}, All: true,
			New: func() runtime.Object { return &appsv1.ReplicaSet{} }, NewList: func() runtime.Object { return &appsv1.ReplicaSetList{} },
			Status: true, Generation: true, Scale: replicaSetScale, FieldNames: []string{"status.replicas"},
			Fields: selectable(func(r *appsv1.ReplicaSet) fields.Set {
				return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
			}),
		},
		{
			Version: apps, Resource: "statefulsets", Singular: "statefulset", Short: []string{"sts"}, All: true,
			New: func() runtime.Object { return &appsv1.StatefulSet{} }, NewList: func() runtime.Object { return &appsv1.StatefulSetList{} },
			Status: true, Generation: true, Scale: statefulSetScale, Unacted: storedOnly("stateful sets"),
		},
		{
			Version: apps, Resource: "daemonsets", Singular: "daemonset", Short: []string{"ds"}, All: true,
			New: func() runtime.Object { return &appsv1.DaemonSet{} }, NewList: func() runtime.Object { return &appsv1.DaemonSetList{} },
			Status: true, Generation: true, Unacted: storedOnly("daemon sets"),
		},
		{
			Version: apps, Resource: "controllerrevisions", Singular: "controllerrevision",
			New: func() runtime.Object { return &appsv1.ControllerRevision{} }, NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		},
		{
			Version: batch, Resource: "jobs", Singular: "job", All: true, Orphan: true,
			New: func() runtime.Object { return &batchv1.Job{} }, NewList: func() runtime.Object { return &batchv1.JobList{} },
			Status: true, Generation: true, Unacted: storedOnly("jobs"), FieldNames: []string{"status.successful"},
			Fields: selectable(func(j *batchv1.Job) fields.Set {
				return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
			}),
		},
		{
			Version: batch, Resource: "cronjobs", Singular: "cronjob", Short: []string{"cj"}, All: true,
			New: func() runtime.Object { return &batchv1.CronJob{} }, NewList: func() runtime.Object { return &batchv1.CronJobList{} },
			Status: true, Generation: true, Unacted: storedOnly("cron jobs"),
		},
	}
}

var deploymentScale = &Scale{
	Read: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		d := As[*appsv1.Deployment](obj)
		return number(d.Spec.Replicas), d.Status.Replicas, d.Spec.Selector
	},
	Write: func(obj runtime.Object, want int32) { As[*appsv1.Deployment](obj).Spec.Replicas = &want },
}

var replicaSetScale = &Scale{
	Read: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		r := As[*appsv1.ReplicaSet](obj)
		return number(r.Spec.Replicas), r.Status.Replicas, r.Spec.Selector
	},
	Write: func(obj runtime.Object, want int32) { As[*appsv1.ReplicaSet](obj).Spec.Replicas = &want },
}

var statefulSetScale = &Scale{
	Read: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		s := As[*appsv1.StatefulSet](obj)
		return number(s.Spec.Replicas), s.Status.Replicas, s.Spec.Selector
	},
	Write: func(obj runtime.Object, want int32) { As[*appsv1.StatefulSet](obj).Spec.Replicas = &want },
}

var replicationControllerScale = &Scale{
	Read: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		r := As[*corev1.ReplicationController](obj)
		return number(r.Spec.Replicas), r.Status.Replicas, &metav1.LabelSelector{MatchLabels: r.Spec.Selector}
	},
	Write: func(obj runtime.Object, want int32) { As[*corev1.ReplicationController](obj).Spec.Replicas = &want },
}

func replicationControllerFields(r *corev1.ReplicationController) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
}

func number(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
