package controllers

import (
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"berth/workloads"
	"berth/workloads/daemonset"
)

const (
	daemonSetWorkers = 2
	// A failed pod is deleted at once the first time, and later after a delay that doubles with each failure.
	failedPodDelay    = time.Second
	maxFailedPodDelay = 15 * time.Minute
)

// newDaemonSetController creates and deletes the pods and ControllerRevisions of DaemonSets.
func newDaemonSetController(c Config) ([]*controller, error) {
	sets := c.Informers.Apps().V1().DaemonSets().Informer()
	pods, nodes := c.Informers.Core().V1().Pods().Informer(), c.Informers.Core().V1().Nodes().Informer()
	revisions := c.Informers.Apps().V1().ControllerRevisions().Informer()
	failures := failedDaemonPods{flowcontrol.NewBackOff(failedPodDelay, maxFailedPodDelay)}
	ctrl, err := newReconciler(c, workload[*appsv1.DaemonSet, appsv1.DaemonSetStatus]{
		kind:    daemonset.Kind.GroupVersionKind(),
		objects: newObjectType[*appsv1.DaemonSet](sets, c.Client.AppsV1().DaemonSets),
		children: []*objectType{
			newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods),
			newRevisionType(c),
		},
		related: []related{{
			informer: nodes, keys: func(any) []string { return sets.GetIndexer().ListKeys() },
			updateKeys: func(before, after any) []string { return setsOfNodeUpdate(sets, before, after) },
		}},
		selector: func(set *appsv1.DaemonSet) *metav1.LabelSelector { return set.Spec.Selector },
		decide: func(set *appsv1.DaemonSet, now time.Time,
			failed *workloads.WriteError) workloads.Decision[appsv1.DaemonSetStatus] {
			children := childrenAndOrphansOf[*corev1.Pod](pods, set)
			d := daemonset.Decide(daemonset.Input{
				Now: now, Set: set, Nodes: all[*corev1.Node](nodes), Pods: children, WriteError: failed,
				Revisions:  namespaced[*appsv1.ControllerRevision](revisions, set.Namespace),
				RetryAfter: failures.retryAfter(set, children, now),
			})
			if failed == nil {
				failures.record(set, d.Writes, now)
			}
			return d
		},
		status: func(set *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &set.Status },
		updateStatus: func(ctx context.Context, set *appsv1.DaemonSet) (*appsv1.DaemonSet, error) {
			return c.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
		},
		workers: daemonSetWorkers,
		measure: func(s syncReport[*appsv1.DaemonSet, appsv1.DaemonSetStatus]) { countStale(daemonSetSkips, s.stale) },
	})
	return []*controller{ctrl}, err
}

// setsOfNodeUpdate returns the keys of the sets for which an update of a node changes whether it runs their pods. Most
// updates are heartbeats and other changes of the status, which change it for none.
func setsOfNodeUpdate(sets cache.SharedIndexInformer, before, after any) (keys []string) {
	old, ok := before.(*corev1.Node)
	node, nodeOK := after.(*corev1.Node)
	if !ok || !nodeOK || maps.Equal(old.Labels, node.Labels) &&
		apiequality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		return nil
	}
	for _, set := range all[*appsv1.DaemonSet](sets) {
		run, stay := daemonset.ShouldRun(set, old)
		if nowRun, nowStay := daemonset.ShouldRun(set, node); nowRun != run || nowStay != stay {
			keys = append(keys, objectKey(set)...)
		}
	}
	return keys
}

// all returns all objects of an informer.
func all[T workloads.Object](informer cache.SharedIndexInformer) (out []T) {
	for _, obj := range informer.GetIndexer().List() {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// failedDaemonPods delays the deletion of failed pods, whose replacement probably fails too. It is safe for concurrent
// use.
type failedDaemonPods struct{ backOff *flowcontrol.Backoff }

// failureKey returns the key of a node in the back-off. A changed set starts again without a delay.
func failureKey(set *appsv1.DaemonSet, node string) string {
	return fmt.Sprintf("%s/%d/%s", set.UID, set.Status.ObservedGeneration, node)
}

// retryAfter returns, by node, when the failed pods that are in their back-off may be deleted.
func (f failedDaemonPods) retryAfter(set *appsv1.DaemonSet, pods []*corev1.Pod, now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, p := range pods {
		key := failureKey(set, daemonset.NodeOf(p))
		if p.Status.Phase == corev1.PodFailed && f.backOff.IsInBackOffSinceUpdate(key, now) {
			out[daemonset.NodeOf(p)] = now.Add(f.backOff.Get(key))
		}
	}
	return out
}

// record increases the delay of the nodes whose failed pods are deleted.
func (f failedDaemonPods) record(set *appsv1.DaemonSet, writes []workloads.Write, now time.Time) {
	for _, w := range writes {
		if p, ok := w.Object.(*corev1.Pod); ok && w.Verb == workloads.Delete && p.Status.Phase == corev1.PodFailed {
			f.backOff.Next(failureKey(set, daemonset.NodeOf(p)), now)
			f.backOff.GC()
		}
	}
}
