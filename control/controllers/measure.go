package controllers

import (
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"berth/control/metrics/subsystem"
	"berth/workloads"
)

// The subsystems of the metrics. Their names, labels and buckets are those of kube-controller-manager.
const (
	replicaSetSubsystem  subsystem.Name = "replicaset_controller"
	statefulSetSubsystem subsystem.Name = "statefulset_controller"
	daemonSetSubsystem   subsystem.Name = "daemonset_controller"
	cronJobSubsystem     subsystem.Name = "cronjob_controller"
	ttlSubsystem         subsystem.Name = "ttl_after_finished_controller"
)

var (
	sortingDeletionAgeRatio = replicaSetSubsystem.Histogram("sorting_deletion_age_ratio",
		"Age of each ready pod that a ReplicaSet deletes to scale down, divided by the age of its youngest "+
			"ready pod.",
		metrics.ALPHA, metrics.ExponentialBuckets(0.25, 2, 6))
	statefulSetMaxUnavailable = statefulSetSubsystem.GaugeVec("statefulset_max_unavailable",
		"Number of pods of a StatefulSet that a rolling update may make unavailable.",
		metrics.ALPHA, "statefulset_namespace", "statefulset_name", "pod_management_policy")
	statefulSetUnavailable = statefulSetSubsystem.GaugeVec("statefulset_unavailable_replicas",
		"Number of replicas of a StatefulSet that are missing or not available.",
		metrics.ALPHA, "statefulset_namespace", "statefulset_name", "pod_management_policy")
	cronJobCreationSkew = cronJobSubsystem.Histogram("job_creation_skew_duration_seconds",
		"Time from the scheduled time of a CronJob to the creation of its Job.",
		metrics.STABLE, metrics.ExponentialBuckets(1, 2, 10))
	ttlDeletionDuration = ttlSubsystem.Histogram("job_deletion_duration_seconds",
		"Time from the expiry of a finished Job to its deletion.",
		metrics.ALPHA, metrics.ExponentialBuckets(0.1, 2, 14))

	replicaSetSkips  = newStaleSkips(replicaSetSubsystem, "ReplicaSet")
	statefulSetSkips = newStaleSkips(statefulSetSubsystem, "StatefulSet")
	daemonSetSkips   = newStaleSkips(daemonSetSubsystem, "DaemonSet")
)

func newStaleSkips(component subsystem.Name, kind string) *metrics.CounterVec {
	return component.CounterVec("stale_sync_skips_total",
		"Number of syncs of a "+kind+" that were skipped because the watch cache lacks a write of the "+
			"controller.",
		metrics.ALPHA, "group", "resource")
}

// registerMetrics registers the metrics of all controllers. It is idempotent.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(sortingDeletionAgeRatio, statefulSetMaxUnavailable, statefulSetUnavailable,
		cronJobCreationSkew, ttlDeletionDuration, replicaSetSkips, statefulSetSkips, daemonSetSkips)
	legacyregistry.MustRegister(jobMetrics...)
	legacyregistry.MustRegister(autoscalerMetrics...)
})

// countStale counts a skipped sync.
func countStale(counter *metrics.CounterVec, of *objectType) {
	if of == nil {
		return
	}
	resource := of.resource()
	counter.WithLabelValues(resource.Group, resource.Resource).Inc()
}

// resource returns the resource of the type.
func (r *objectType) resource() schema.GroupResource {
	kinds, _, err := clientscheme.Scheme.ObjectKinds(r.zero)
	if err != nil || len(kinds) == 0 {
		return schema.GroupResource{} // all types are of client-go
	}
	plural, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return plural.GroupResource()
}

// measureReplicaSet counts a sync of a ReplicaSet. pods are those of the set before.
func measureReplicaSet(pods []*corev1.Pod, writes []workloads.Write, now time.Time) {
	var youngest time.Time
	for _, p := range pods {
		if workloads.Active(p) && workloads.ReadySince(p) != nil && p.CreationTimestamp.After(youngest) {
			youngest = p.CreationTimestamp.Time
		}
	}
	for _, w := range writes {
		p, ok := w.Object.(*corev1.Pod)
		if !ok || w.Verb != workloads.Delete || workloads.ReadySince(p) == nil {
			continue
		}
		if ratio, ok := ageRatio(now.Sub(p.CreationTimestamp.Time), now.Sub(youngest)); ok && !youngest.IsZero() {
			sortingDeletionAgeRatio.Observe(ratio)
		}
	}
}

// ageRatio returns how many times older a pod is than the youngest one, rounded down to a whole number as upstream.
func ageRatio(age, youngest time.Duration) (float64, bool) {
	if youngest.Milliseconds() <= 0 {
		return 0, false
	}
	return float64(age.Milliseconds() / youngest.Milliseconds()), true
}

// measureStatefulSet sets the gauges of a StatefulSet after a sync.
func measureStatefulSet(set *appsv1.StatefulSet, status *appsv1.StatefulSetStatus, maxUnavailable int) {
	labels := []string{set.Namespace, set.Name, string(set.Spec.PodManagementPolicy)}
	statefulSetMaxUnavailable.WithLabelValues(labels...).Set(float64(maxUnavailable))
	replicas := int32(1)
	if set.Spec.Replicas != nil {
		replicas = *set.Spec.Replicas
	}
	statefulSetUnavailable.WithLabelValues(labels...).Set(float64(max(0, replicas-status.AvailableReplicas)))
}

// forgetStatefulSet removes the gauges of a deleted StatefulSet.
func forgetStatefulSet(set *appsv1.StatefulSet) {
	labels := []string{set.Namespace, set.Name, string(set.Spec.PodManagementPolicy)}
	statefulSetMaxUnavailable.DeleteLabelValues(labels...)
	statefulSetUnavailable.DeleteLabelValues(labels...)
}

// measureCronJob observes the delay of the Jobs that a sync of a CronJob created.
func measureCronJob(writes []workloads.Write) {
	for _, w := range writes {
		j, ok := w.Object.(*batchv1.Job)
		if !ok || w.Verb != workloads.Create {
			continue
		}
		at, err := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
		if err == nil {
			cronJobCreationSkew.Observe(j.CreationTimestamp.Sub(at).Seconds())
		}
	}
}

// measureExpiry observes how late an expired Job was deleted.
func measureExpiry(j *batchv1.Job, finished time.Time, now time.Time) {
	if ttl := j.Spec.TTLSecondsAfterFinished; ttl != nil {
		ttlDeletionDuration.Observe(now.Sub(finished.Add(time.Duration(*ttl) * time.Second)).Seconds())
	}
}
