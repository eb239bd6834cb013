package controllers

import (
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
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
		metrics.BETA, "statefulset_namespace", "statefulset_name", "pod_management_policy")
	statefulSetUnavailable = statefulSetSubsystem.GaugeVec("statefulset_unavailable_replicas",
		"Number of replicas of a StatefulSet that are missing or not available.",
		metrics.BETA, "statefulset_namespace", "statefulset_name", "pod_management_policy")
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
		cronJobCreationSkew, ttlDeletionDuration, replicaSetSkips, statefulSetSkips, daemonSetSkips,
		podCertificateRequests)
	legacyregistry.MustRegister(jobMetrics...)
	legacyregistry.MustRegister(autoscalerMetrics...)
	legacyregistry.MustRegister(nodeMetrics...)
	legacyregistry.MustRegister(volumeMetrics...)
	legacyregistry.CustomMustRegister(volumeCollector)
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

// objectGauges are gauges with a value for each object of an informer. A sync that ends after the deletion of its
// object does not set them. objectGauges are safe for concurrent use.
type objectGauges[O metav1.Object] struct {
	informer cache.SharedIndexInformer
	labels   func(O) []string
	gauges   []*metrics.GaugeVec

	mu sync.Mutex // a deletion is handled before or after a call of set
}

// stored returns the object of the same name in the informer.
func (g *objectGauges[O]) stored(obj O) (stored O, found bool) {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return stored, false
	}
	o, _, err := g.informer.GetIndexer().GetByKey(key)
	if err != nil {
		return stored, false
	}
	stored, found = o.(O)
	return stored, found
}

// set sets the gauges of an object, in their order, if the informer still has it. The informer calls forget after it
// has removed an object.
func (g *objectGauges[O]) set(obj O, values ...float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if stored, found := g.stored(obj); !found || stored.GetUID() != obj.GetUID() {
		return
	}
	for i, value := range values {
		g.gauges[i].WithLabelValues(g.labels(obj)...).Set(value)
	}
}

// forget removes the gauges of a deleted object, unless a new one has the same labels.
func (g *objectGauges[O]) forget(obj O) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if stored, found := g.stored(obj); found && slices.Equal(g.labels(stored), g.labels(obj)) {
		return
	}
	for _, gauge := range g.gauges {
		gauge.DeleteLabelValues(g.labels(obj)...)
	}
}

// handler calls forget for deleted and replaced objects.
func (g *objectGauges[O]) handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			old, ok := before.(O)
			if obj, okAfter := after.(O); ok && okAfter && old.GetUID() != obj.GetUID() {
				g.forget(old)
			}
		},
		DeleteFunc: func(obj any) {
			obj = lastKnown(obj)
			if o, ok := obj.(O); ok {
				g.forget(o)
			}
		},
	}
}

// newStatefulSetGauges returns the gauges that measureStatefulSet sets.
func newStatefulSetGauges(sets cache.SharedIndexInformer) *objectGauges[*appsv1.StatefulSet] {
	return &objectGauges[*appsv1.StatefulSet]{
		informer: sets, gauges: []*metrics.GaugeVec{statefulSetMaxUnavailable, statefulSetUnavailable},
		labels: func(set *appsv1.StatefulSet) []string {
			return []string{set.Namespace, set.Name, string(set.Spec.PodManagementPolicy)}
		},
	}
}

// measureStatefulSet sets the gauges of a StatefulSet after a sync.
func measureStatefulSet(gauges *objectGauges[*appsv1.StatefulSet], set *appsv1.StatefulSet,
	status *appsv1.StatefulSetStatus, maxUnavailable int) {
	replicas := int32(1)
	if set.Spec.Replicas != nil {
		replicas = *set.Spec.Replicas
	}
	gauges.set(set, float64(maxUnavailable), float64(max(0, replicas-status.AvailableReplicas)))
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
