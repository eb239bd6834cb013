package registry

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func workloadKinds() []*Kind {
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	return []*Kind{
		{
			GroupVersion: apps, Resource: "deployments", Singular: "deployment", ShortNames: []string{"deploy"},
			InAllCategory: true,
			New:           func() runtime.Object { return &appsv1.Deployment{} },
			NewList:       func() runtime.Object { return &appsv1.DeploymentList{} },
			Status:        true, Generation: true, GenerationMetadata: metav1.Object.GetAnnotations,
			Scale: deploymentScale,
		},
		{
			GroupVersion: apps, Resource: "replicasets", Singular: "replicaset", ShortNames: []string{"rs"},
			InAllCategory: true,
			New:           func() runtime.Object { return &appsv1.ReplicaSet{} },
			NewList:       func() runtime.Object { return &appsv1.ReplicaSetList{} },
			Status:        true, Generation: true, Scale: replicaSetScale, FieldNames: []string{"status.replicas"},
			Fields: fieldsFunc(func(r *appsv1.ReplicaSet) fields.Set {
				return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
			}),
		},
		{
			GroupVersion: apps, Resource: "statefulsets", Singular: "statefulset", ShortNames: []string{"sts"},
			InAllCategory: true,
			New:           func() runtime.Object { return &appsv1.StatefulSet{} },
			NewList:       func() runtime.Object { return &appsv1.StatefulSetList{} },
			Status:        true, Generation: true, Scale: statefulSetScale, Warnings: statefulSetWarnings,
		},
		{
			GroupVersion: apps, Resource: "daemonsets", Singular: "daemonset", ShortNames: []string{"ds"},
			InAllCategory: true,
			New:           func() runtime.Object { return &appsv1.DaemonSet{} },
			NewList:       func() runtime.Object { return &appsv1.DaemonSetList{} },
			Status:        true, Generation: true,
			Prepare: prepareDaemonSet, PrepareUpdate: prepareDaemonSetUpdate, PrepareStatus: prepareDaemonSetStatus,
		},
		{
			GroupVersion: apps, Resource: "controllerrevisions", Singular: "controllerrevision",
			New:     func() runtime.Object { return &appsv1.ControllerRevision{} },
			NewList: func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		},
		{
			GroupVersion: batch, Resource: "jobs", Singular: "job", InAllCategory: true, OrphanDependents: true,
			New: func() runtime.Object {
				return &batchv1.Job{}
			}, NewList: func() runtime.Object { return &batchv1.JobList{} },
			Status: true, Generation: true,
			FieldNames: []string{"status.successful"},
			Fields: fieldsFunc(func(j *batchv1.Job) fields.Set {
				return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
			}),
		},
		{
			GroupVersion:  autoscalingv2.SchemeGroupVersion,
			OtherVersions: []schema.GroupVersion{autoscalingv1.SchemeGroupVersion},
			Resource:      "horizontalpodautoscalers", Singular: "horizontalpodautoscaler", ShortNames: []string{"hpa"},
			InAllCategory: true,
			New:           func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
			NewList:       func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} },
			Status:        true, Generation: true,
		},
		{
			GroupVersion: batch, Resource: "cronjobs", Singular: "cronjob", ShortNames: []string{"cj"},
			InAllCategory: true,
			New:           func() runtime.Object { return &batchv1.CronJob{} },
			NewList:       func() runtime.Object { return &batchv1.CronJobList{} },
			Status:        true, Generation: true,
		},
	}
}

func statefulSetWarnings(obj runtime.Object) []string {
	if n := MustCast[*appsv1.StatefulSet](obj).Spec.RevisionHistoryLimit; n == nil || *n >= 0 {
		return nil
	}
	return []string{"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is " +
		"recommended"}
}

var deploymentScale = &ScaleAccessor{
	Get: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		d := MustCast[*appsv1.Deployment](obj)
		return replicasOrDefault(d.Spec.Replicas), d.Status.Replicas, d.Spec.Selector
	},
	SetReplicas: func(obj runtime.Object, want int32) { MustCast[*appsv1.Deployment](obj).Spec.Replicas = &want },
}

var replicaSetScale = &ScaleAccessor{
	Get: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		r := MustCast[*appsv1.ReplicaSet](obj)
		return replicasOrDefault(r.Spec.Replicas), r.Status.Replicas, r.Spec.Selector
	},
	SetReplicas: func(obj runtime.Object, want int32) { MustCast[*appsv1.ReplicaSet](obj).Spec.Replicas = &want },
}

var statefulSetScale = &ScaleAccessor{
	Get: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		s := MustCast[*appsv1.StatefulSet](obj)
		return replicasOrDefault(s.Spec.Replicas), s.Status.Replicas, s.Spec.Selector
	},
	SetReplicas: func(obj runtime.Object, want int32) { MustCast[*appsv1.StatefulSet](obj).Spec.Replicas = &want },
}

var replicationControllerScale = &ScaleAccessor{
	Get: func(obj runtime.Object) (int32, int32, *metav1.LabelSelector) {
		r := MustCast[*corev1.ReplicationController](obj)
		return replicasOrDefault(r.Spec.Replicas), r.Status.Replicas,
			&metav1.LabelSelector{MatchLabels: r.Spec.Selector}
	},
	SetReplicas: func(obj runtime.Object, want int32) {
		MustCast[*corev1.ReplicationController](obj).Spec.Replicas = &want
	},
}

func replicationControllerFields(r *corev1.ReplicationController) fields.Set {
	return fields.Set{"status.replicas": strconv.Itoa(int(r.Status.Replicas))}
}

func replicasOrDefault(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}
