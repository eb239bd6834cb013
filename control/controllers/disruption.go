package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
)

// disruptionTimeout is how long an eviction that was allowed counts as under way,
// though the pod has not begun to end.
const disruptionTimeout = 2 * time.Minute

// disruptionController keeps the status of disruption budgets, by which evictions are
// allowed.
type disruptionController struct{ Config }

func newDisruptionController(c Config) ([]*controller, error) {
	budgets, pods := c.Informers.Policy().V1().PodDisruptionBudgets(), c.Informers.Core().V1().Pods()
	b := &disruptionController{c}
	w := c.newController(b.sync)
	if err := w.watch(budgets.Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{w}, w.watch(pods.Informer(), func(obj any) (keys []string) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil
		}
		list, err := budgets.Lister().PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
		if err != nil {
			return nil
		}
		for _, pdb := range list {
			keys = append(keys, objectKey(pdb)...) // also if the pod's labels matched before only
		}
		return keys
	})
}

func (b *disruptionController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of ours
	}
	pdb, err := b.Informers.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(namespace).Get(name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // validation lets none in
	}
	pods, err := b.Informers.Core().V1().Pods().Lister().Pods(namespace).List(selector)
	if err != nil {
		return 0, fmt.Errorf("list pods of budget %s: %w", key, err)
	}
	expected, desired, err := b.expectedPods(ctx, pdb, pods)
	if err != nil {
		b.Events.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v", err)
		out := pdb.DeepCopy()
		out.Status.DisruptionsAllowed, out.Status.ObservedGeneration = 0, pdb.Generation
		setDisruptionAllowed(out, metav1.ConditionFalse, policyv1.SyncFailedReason, err.Error())
		return maxRetryDelay, b.updateStatus(ctx, pdb, out)
	}
	out, again := budgetStatus(pdb, pods, expected, desired, time.Now())
	return again, b.updateStatus(ctx, pdb, out)
}

// budgetStatus counts: pdb is not changed. Again is when the first of the evictions under
// way counts no more; 0: none is.
func budgetStatus(pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod, expected, desired int32, now time.Time) (out *policyv1.PodDisruptionBudget, again time.Duration) {
	out = pdb.DeepCopy()
	disrupted := map[string]metav1.Time{}
	var healthy int32
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if since, ok := pdb.Status.DisruptedPods[pod.Name]; ok {
			if left := since.Add(disruptionTimeout).Sub(now); left > 0 {
				disrupted[pod.Name] = since
				if again == 0 || left < again {
					again = left
				}
				continue
			}
		}
		if podReady(pod) {
			healthy++
		}
	}
	out.Status.ExpectedPods, out.Status.DesiredHealthy, out.Status.CurrentHealthy = expected, desired, healthy
	out.Status.DisruptionsAllowed = max(0, healthy-desired)
	if expected <= 0 {
		out.Status.DisruptionsAllowed = 0
	}
	out.Status.DisruptedPods = disrupted
	if len(disrupted) == 0 {
		out.Status.DisruptedPods = nil
	}
	out.Status.ObservedGeneration = pdb.Generation
	if out.Status.DisruptionsAllowed > 0 {
		setDisruptionAllowed(out, metav1.ConditionTrue, policyv1.SufficientPodsReason, "")
	} else {
		setDisruptionAllowed(out, metav1.ConditionFalse, policyv1.InsufficientPodsReason, "")
	}
	return out, again
}

func setDisruptionAllowed(pdb *policyv1.PodDisruptionBudget, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&pdb.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: status, Reason: reason, Message: message, ObservedGeneration: pdb.Generation,
	})
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func (b *disruptionController) updateStatus(ctx context.Context, old, now *policyv1.PodDisruptionBudget) error {
	if apiequality.Semantic.DeepEqual(old.Status, now.Status) {
		return nil
	}
	_, err := b.Client.PolicyV1().PodDisruptionBudgets(now.Namespace).UpdateStatus(ctx, now, metav1.UpdateOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("write status of budget %s/%s: %w", now.Namespace, now.Name, err)
	}
	return nil
}

// expectedPods is how many pods there should be, and how many of them healthy. A
// number of healthy pods counts the pods that are there; a percentage, or a
// number that may be missing, those that their controllers want.
func (b *disruptionController) expectedPods(ctx context.Context, pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod) (expected, desired int32, err error) {
	if m := pdb.Spec.MinAvailable; m != nil && m.Type == intstr.Int {
		return int32(len(pods)), m.IntVal, nil
	}
	if expected, err = b.expectedScale(ctx, pods); err != nil {
		return 0, 0, err
	}
	if m := pdb.Spec.MaxUnavailable; m != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(m, int(expected), true)
		return expected, max(0, expected-int32(n)), err //nolint:wrapcheck // names the value
	}
	if m := pdb.Spec.MinAvailable; m != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(m, int(expected), true)
		return expected, int32(n), err //nolint:wrapcheck // names the value
	}
	return expected, 0, nil
}

// expectedScale adds up what the controllers of the pods want, each once.
func (b *disruptionController) expectedScale(ctx context.Context, pods []*corev1.Pod) (sum int32, err error) {
	counts, alone := map[types.UID]int32{}, 0
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			alone++
			continue
		}
		if _, known := counts[owner.UID]; known {
			continue
		}
		uid, n, err := b.scaleOf(ctx, pod.Namespace, owner)
		if err != nil {
			return 0, err
		}
		counts[uid], counts[owner.UID] = n, 0
		if uid == owner.UID {
			counts[uid] = n
		}
	}
	if alone > 0 && alone == len(pods) {
		return 0, fmt.Errorf("found no controllers for %d pods: a percentage and maxUnavailable need the number that a controller wants", alone)
	}
	for n := range maps.Values(counts) {
		sum += n
	}
	return sum, nil
}

// scaleOf is how many pods the controller, or the deployment behind it, wants.
func (b *disruptionController) scaleOf(ctx context.Context, namespace string, owner *metav1.OwnerReference) (types.UID, int32, error) {
	count := func(n *int32) int32 {
		if n == nil {
			return 1
		}
		return *n
	}
	gone := func(err error) (types.UID, int32, error) {
		if apierrors.IsNotFound(err) {
			return owner.UID, 0, nil
		}
		return owner.UID, 0, fmt.Errorf("look at %s %s: %w", owner.Kind, owner.Name, err)
	}
	apps := b.Client.AppsV1()
	switch owner.Kind {
	case "ReplicaSet":
		rs, err := apps.ReplicaSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return gone(err)
		}
		if up := metav1.GetControllerOf(rs); up != nil && up.Kind == "Deployment" {
			d, err := apps.Deployments(namespace).Get(ctx, up.Name, metav1.GetOptions{})
			if err != nil {
				return gone(err)
			}
			return d.UID, count(d.Spec.Replicas), nil
		}
		return rs.UID, count(rs.Spec.Replicas), nil
	case "Deployment":
		d, err := apps.Deployments(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return gone(err)
		}
		return d.UID, count(d.Spec.Replicas), nil
	case "StatefulSet":
		s, err := apps.StatefulSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return gone(err)
		}
		return s.UID, count(s.Spec.Replicas), nil
	case "ReplicationController":
		rc, err := b.Client.CoreV1().ReplicationControllers(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return gone(err)
		}
		return rc.UID, count(rc.Spec.Replicas), nil
	}
	return "", 0, fmt.Errorf("%s %s has no scale that is known here", owner.Kind, owner.Name)
}
