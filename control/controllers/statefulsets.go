package controllers

import (
	"context"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
	"berth/workloads/statefulset"
)

// statefulSetWorkers is the number of StatefulSets that are processed concurrently.
const statefulSetWorkers = 5

// newStatefulSetController creates and deletes the pods, claims and ControllerRevisions of StatefulSets.
func newStatefulSetController(c Config) ([]*controller, error) {
	sets := c.Informers.Apps().V1().StatefulSets().Informer()
	pods := c.Informers.Core().V1().Pods().Informer()
	revisions := c.Informers.Apps().V1().ControllerRevisions().Informer()
	claims := c.Informers.Core().V1().PersistentVolumeClaims().Informer()
	gauges := newStatefulSetGauges(sets)
	ctrl, err := newReconciler(c, workload[*appsv1.StatefulSet, appsv1.StatefulSetStatus]{
		kind:    statefulset.Kind.GroupVersionKind(),
		objects: newObjectType[*appsv1.StatefulSet](sets, c.Client.AppsV1().StatefulSets),
		children: []*objectType{
			newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods),
			newRevisionType(c),
		},
		written: []*objectType{
			newObjectType[*corev1.PersistentVolumeClaim](claims, c.Client.CoreV1().PersistentVolumeClaims),
		},
		related: []related{{informer: claims, keys: func(obj any) []string { return setsOfClaim(sets, obj) }}},
		selector: func(set *appsv1.StatefulSet) *metav1.LabelSelector {
			return set.Spec.Selector
		},
		decide: func(set *appsv1.StatefulSet, now time.Time,
			failed *workloads.WriteError) workloads.Decision[appsv1.StatefulSetStatus] {
			return statefulset.Decide(statefulset.Input{
				Now: now, Set: set, WriteError: failed,
				Pods:      childrenAndOrphansOf[*corev1.Pod](pods, set),
				Revisions: namespaced[*appsv1.ControllerRevision](revisions, set.Namespace),
				Claims:    claimsOf(claims, set),
			})
		},
		status: func(set *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &set.Status },
		updateStatus: func(ctx context.Context, set *appsv1.StatefulSet) (*appsv1.StatefulSet, error) {
			return c.Client.AppsV1().StatefulSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
		},
		workers: statefulSetWorkers,
		measure: func(s syncReport[*appsv1.StatefulSet, appsv1.StatefulSetStatus]) {
			countStale(statefulSetSkips, s.stale)
			status := &s.object.Status
			if s.status != nil {
				status = s.status
			}
			measureStatefulSet(gauges, s.object, status, statefulset.MaxUnavailable(s.object))
		},
	})
	if err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.addEventHandler(sets, gauges.handler())
}

// claimsOf returns the claims whose names begin as those of the claim templates of the set.
func claimsOf(informer cache.SharedIndexInformer, set *appsv1.StatefulSet) (out []*corev1.PersistentVolumeClaim) {
	if len(set.Spec.VolumeClaimTemplates) == 0 {
		return nil
	}
	for _, claim := range namespaced[*corev1.PersistentVolumeClaim](informer, set.Namespace) {
		if hasClaimTemplate(set, claim.Name) {
			out = append(out, claim)
		}
	}
	return out
}

// setsOfClaim returns the keys of the sets whose claim templates can have the claim.
func setsOfClaim(sets cache.SharedIndexInformer, obj any) (keys []string) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil
	}
	for _, set := range namespaced[*appsv1.StatefulSet](sets, claim.Namespace) {
		if hasClaimTemplate(set, claim.Name) {
			keys = append(keys, objectKey(set)...)
		}
	}
	return keys
}

// hasClaimTemplate reports whether a claim has the name that a template of the set gives to claims.
func hasClaimTemplate(set *appsv1.StatefulSet, claim string) bool {
	for i := range set.Spec.VolumeClaimTemplates {
		if strings.HasPrefix(claim, set.Spec.VolumeClaimTemplates[i].Name+"-"+set.Name+"-") {
			return true
		}
	}
	return false
}
