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

// disruptionTimeout is how long an allowed eviction counts as in progress although the pod is not
// being deleted, as in upstream's controller.
const disruptionTimeout = 2 * time.Minute

// disruptionController maintains the status of PodDisruptionBudgets, on which the eviction API
// relies.
type disruptionController struct{ Config }

func newDisruptionController(c Config) ([]*controller, error) {
	budgets, pods := c.Informers.Policy().V1().PodDisruptionBudgets(), c.Informers.Core().V1().Pods()
	b := &disruptionController{c}
	ctrl := c.newController(b.sync)
	if err := ctrl.watch(budgets.Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(pods.Informer(), func(obj any) (keys []string) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return nil
		}
		list, err := budgets.Lister().PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
		if err != nil {
			return nil
		}
		for _, pdb := range list {
			keys = append(keys, objectKey(pdb)...) // also those that matched only the previous labels of the pod
		}
		return keys
	})
}

func (b *disruptionController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	pdb, err := b.Informers.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(namespace).Get(name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return 0, nil //nolint:nilerr // rejected by validation
	}
	pods, err := b.Informers.Core().V1().Pods().Lister().Pods(namespace).List(selector)
	if err != nil {
		return 0, fmt.Errorf("list pods of disruption budget %s: %w", key, err)
	}
	expected, desired, err := b.expectedPods(ctx, pdb, pods)
	if err != nil {
		b.Events.Eventf(pdb, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", err)
		out := pdb.DeepCopy()
		out.Status.DisruptionsAllowed, out.Status.ObservedGeneration = 0, pdb.Generation
		setDisruptionAllowed(out, metav1.ConditionFalse, policyv1.SyncFailedReason, err.Error())
		return maxRetryDelay, b.updateStatus(ctx, pdb, out)
	}
	out, requeueAfter := budgetStatus(pdb, pods, expected, desired, time.Now())
	return requeueAfter, b.updateStatus(ctx, pdb, out)
}

// budgetStatus computes the status in a copy of pdb. requeueAfter is when the first eviction in
// progress expires, or 0.
func budgetStatus(pdb *policyv1.PodDisruptionBudget, pods []*corev1.Pod, expected, desired int32,
	now time.Time) (out *policyv1.PodDisruptionBudget, requeueAfter time.Duration) {
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
				if requeueAfter == 0 || left < requeueAfter {
					requeueAfter = left
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
	return out, requeueAfter
}

func setDisruptionAllowed(pdb *policyv1.PodDisruptionBudget, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&pdb.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: status, Reason: reason, Message: message,
		ObservedGeneration: pdb.Generation,
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
		return fmt.Errorf("update status of disruption budget %s/%s: %w", now.Namespace, now.Name, err)
	}
	return nil
}

// expectedPods returns the number of expected pods and how many of them must be healthy. An
// absolute minAvailable counts the existing pods. A percentage or maxUnavailable counts the
// desired replicas of the pods' controllers.
func (b *disruptionController) expectedPods(ctx context.Context, pdb *policyv1.PodDisruptionBudget,
	pods []*corev1.Pod) (expected, desired int32, err error) {
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

// expectedScale sums the scales of the controllers of the pods. Each controller counts once.
func (b *disruptionController) expectedScale(ctx context.Context, pods []*corev1.Pod) (sum int32, err error) {
	counts, unmanaged := map[types.UID]int32{}, 0
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		if owner == nil {
			unmanaged++
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
	if unmanaged > 0 && unmanaged == len(pods) {
		return 0, fmt.Errorf("found no controller for %d pods: maxUnavailable and percentages require the scale of a "+
			"controller", unmanaged)
	}
	for n := range maps.Values(counts) {
		sum += n
	}
	return sum, nil
}

// scaleOf returns the number of replicas of the controller, or of the Deployment that owns it.
func (b *disruptionController) scaleOf(ctx context.Context, namespace string,
	owner *metav1.OwnerReference) (types.UID, int32, error) {
	count := func(n *int32) int32 {
		if n == nil {
			return 1
		}
		return *n
	}
	notFound := func(err error) (types.UID, int32, error) {
		if apierrors.IsNotFound(err) {
			return owner.UID, 0, nil
		}
		return owner.UID, 0, fmt.Errorf("get %s %s: %w", owner.Kind, owner.Name, err)
	}
	apps := b.Client.AppsV1()
	switch owner.Kind {
	case "ReplicaSet":
		rs, err := apps.ReplicaSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return notFound(err)
		}
		if parent := metav1.GetControllerOf(rs); parent != nil && parent.Kind == "Deployment" {
			d, err := apps.Deployments(namespace).Get(ctx, parent.Name, metav1.GetOptions{})
			if err != nil {
				return notFound(err)
			}
			return d.UID, count(d.Spec.Replicas), nil
		}
		return rs.UID, count(rs.Spec.Replicas), nil
	case "Deployment":
		d, err := apps.Deployments(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return notFound(err)
		}
		return d.UID, count(d.Spec.Replicas), nil
	case "StatefulSet":
		s, err := apps.StatefulSets(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return notFound(err)
		}
		return s.UID, count(s.Spec.Replicas), nil
	case "ReplicationController":
		rc, err := b.Client.CoreV1().ReplicationControllers(namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return notFound(err)
		}
		return rc.UID, count(rc.Spec.Replicas), nil
	}
	return "", 0, fmt.Errorf("%s %s has no supported scale", owner.Kind, owner.Name)
}
