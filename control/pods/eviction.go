package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/util/retry"

	"berth/control/registry"
)

const (
	// maxDisruptedPods limits the evicted pods that a budget has not observed yet.
	maxDisruptedPods = 2000
	// retryAfterSeconds is the suggested retry delay while a budget is being processed.
	retryAfterSeconds = 10
)

// evictionRetry limits the retries after conflicting writes.
var evictionRetry = retry.DefaultRetry

// Eviction implements pods/eviction: it deletes a pod if its disruption budget allows that.
type Eviction struct {
	pods    *registry.Store
	options Options
}

var (
	_ rest.NamedCreater             = (*Eviction)(nil)
	_ rest.GroupVersionKindProvider = (*Eviction)(nil)
)

// GroupVersionKind returns policy/v1 Eviction, which belongs to another group than pods.
func (e *Eviction) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return policyv1.SchemeGroupVersion.WithKind("Eviction")
}

// New returns an empty eviction.
func (e *Eviction) New() runtime.Object { return &policyv1.Eviction{} }

// Destroy does nothing: the main resource owns the storage.
func (e *Eviction) Destroy() {}

// Create evicts the named pod. It returns TooManyRequests if the budget is exhausted. The client
// can retry.
func (e *Eviction) Create(
	ctx context.Context,
	name string,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	eviction, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an Eviction object: %#v", obj))
	}
	if name != eviction.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	deletion := eviction.DeleteOptions
	if deletion == nil {
		deletion = &metav1.DeleteOptions{}
	}
	deletion = deletion.DeepCopy()
	if options != nil && dryrun.IsDryRun(options.DryRun) {
		deletion.DryRun = options.DryRun
	}
	if validate != nil {
		if err := validate(ctx, eviction.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	only := deletion.Preconditions
	if only == nil {
		only = &metav1.Preconditions{}
	}
	// A client that specifies a resource version gets the conflict. Otherwise the current pod is
	// checked again.
	again := func(err error) bool { return only.ResourceVersion == nil && apierrors.IsConflict(err) }
	var other error // the UID does not match: not retried
	err := retry.OnError(evictionRetry, again, func() error {
		found, err := e.pods.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod := registry.MustCast[*corev1.Pod](found)
		if only.UID != nil && *only.UID != pod.UID {
			other = apierrors.NewConflict(e.pods.Kind.GroupResource(), name,
				fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s)", *only.UID,
					pod.UID))
			return nil
		}
		return e.evict(ctx, pod, deletion.DeepCopy())
	})
	if other != nil {
		return nil, other
	}
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (e *Eviction) evict(ctx context.Context, pod *corev1.Pod, deletion *metav1.DeleteOptions) error {
	if exemptFromBudgets(pod) {
		return e.deletePod(ctx, pod, withPreconditions(pod, deletion), false)
	}
	budget, err := e.budgetOf(ctx, pod)
	if err != nil {
		return err
	}
	if budget == nil {
		return e.deletePod(ctx, pod, deletion, true)
	}
	if !isReady(pod) && canEvictUnhealthy(budget) {
		// An unhealthy pod does not count against the budget, as long as the pod has not changed.
		return e.deletePod(ctx, pod, withPreconditions(pod, deletion), true)
	}
	dry := dryrun.IsDryRun(deletion.DryRun)
	err = retry.RetryOnConflict(evictionRetry, func() error {
		if err := checkAndDecrement(budget, pod.Name, dry); err != nil || dry {
			return err
		}
		updateErr := e.options.UpdateBudgetStatus(ctx, budget)
		if !apierrors.IsConflict(updateErr) {
			return updateErr
		}
		if budget, err = e.budgetOf(ctx, pod); err != nil {
			return err
		}
		if budget == nil {
			return nil // the budget was deleted in the meantime
		}
		return updateErr
	})
	if apierrors.IsConflict(err) {
		return apierrors.NewTooManyRequests(
			"Cannot evict pod as it would violate the pod's disruption budget.",
			retryAfterSeconds,
		)
	}
	if err != nil {
		return err
	}
	return e.deletePod(ctx, pod, deletion, true)
}

// exemptFromBudgets reports whether no budget counts the pod: it is pending, terminated or being
// deleted.
func exemptFromBudgets(pod *corev1.Pod) bool {
	return isTerminal(pod) || pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// withPreconditions restricts the deletion to the observed version of the pod: it may have become
// ready since. A terminated pod cannot.
func withPreconditions(pod *corev1.Pod, deletion *metav1.DeleteOptions) *metav1.DeleteOptions {
	out := deletion.DeepCopy()
	if out.Preconditions == nil {
		out.Preconditions = &metav1.Preconditions{}
	}
	if out.Preconditions.UID == nil {
		out.Preconditions.UID = &pod.UID
	}
	if out.Preconditions.ResourceVersion == nil && !isTerminal(pod) {
		out.Preconditions.ResourceVersion = &pod.ResourceVersion
	}
	return out
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// canEvictUnhealthy reports whether a pod that is not ready can be evicted regardless of the
// allowed disruptions.
func canEvictUnhealthy(b *policyv1.PodDisruptionBudget) bool {
	if p := b.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// budgetOf returns the budget of a pod, or nil if there is none.
func (e *Eviction) budgetOf(ctx context.Context, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	all, err := e.options.ListBudgets(ctx, pod.Namespace)
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for i := range all {
		selector, err := metav1.LabelSelectorAsSelector(all[i].Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue // an invalid selector matches nothing
		}
		if found != nil {
			return nil, apierrors.NewInternalError(
				fmt.Errorf("this pod has more than one PodDisruptionBudget, which the eviction subresource does " +
					"not support"),
			)
		}
		found = all[i].DeepCopy()
	}
	return found, nil
}

// checkAndDecrement decrements the allowed disruptions of a budget, or returns an error if there
// are none.
func checkAndDecrement(b *policyv1.PodDisruptionBudget, pod string, dry bool) error {
	tooManyRequests := func(after int, message string) error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", after)
		err.ErrStatus.Details.Causes = append(
			err.ErrStatus.Details.Causes,
			metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message},
		)
		return err
	}
	forbidden := func(message string) error {
		return apierrors.NewForbidden(
			schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudgets"},
			b.Name,
			fmt.Errorf("%s", message),
		)
	}
	s := &b.Status
	switch {
	case s.ObservedGeneration < b.Generation:
		return tooManyRequests(
			retryAfterSeconds,
			fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name),
		)
	case s.DisruptionsAllowed < 0:
		return forbidden("pdb disruptions allowed is negative")
	case len(s.DisruptedPods) > maxDisruptedPods:
		return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
	case s.DisruptionsAllowed == 0:
		return tooManyRequests(
			0,
			fmt.Sprintf(
				"The disruption budget %s needs %d healthy pods and has %d currently",
				b.Name,
				s.DesiredHealthy,
				s.CurrentHealthy,
			),
		)
	}
	if dry {
		return nil
	}
	s.DisruptionsAllowed--
	if s.DisruptionsAllowed == 0 {
		setBudgetCondition(b)
	}
	if s.DisruptedPods == nil {
		s.DisruptedPods = map[string]metav1.Time{}
	}
	// The disruption controller removes the entry when it observes the deletion.
	s.DisruptedPods[pod] = metav1.Time{Time: time.Now()}
	return nil
}

// setBudgetCondition sets DisruptionAllowed to false.
func setBudgetCondition(b *policyv1.PodDisruptionBudget) {
	c := metav1.Condition{
		Type:               policyv1.DisruptionAllowedCondition,
		Status:             metav1.ConditionFalse,
		Reason:             policyv1.InsufficientPodsReason,
		ObservedGeneration: b.Status.ObservedGeneration,
		LastTransitionTime: metav1.Now(),
	}
	for i := range b.Status.Conditions {
		if existing := &b.Status.Conditions[i]; existing.Type == c.Type {
			if existing.Status == c.Status {
				c.LastTransitionTime = existing.LastTransitionTime
			}
			*existing = c
			return
		}
	}
	b.Status.Conditions = append(b.Status.Conditions, c)
}

// deletePod adds the condition DisruptionTarget and deletes the pod.
func (e *Eviction) deletePod(ctx context.Context, pod *corev1.Pod, deletion *metav1.DeleteOptions,
	addCondition bool,
) error {
	if addCondition && !dryrun.IsDryRun(deletion.DryRun) {
		if err := e.addDisruptionCondition(ctx, pod, deletion); err != nil {
			return err
		}
	}
	_, _, err := e.pods.Delete(ctx, pod.Name, rest.ValidateAllObjectFunc, deletion)
	return err
}

func (e *Eviction) addDisruptionCondition(ctx context.Context, pod *corev1.Pod, deletion *metav1.DeleteOptions) error {
	key, err := e.pods.KeyFunc(ctx, pod.Name)
	if err != nil {
		return err
	}
	preconditions := &storage.Preconditions{UID: &pod.UID}
	if p := deletion.Preconditions; p != nil {
		preconditions.ResourceVersion = p.ResourceVersion
	}
	updated := &corev1.Pod{}
	err = e.pods.Storage.GuaranteedUpdate(ctx, key, updated, false, preconditions,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			now := registry.MustCast[*corev1.Pod](obj)
			setCondition(&now.Status, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
				ObservedGeneration: now.Generation, LastTransitionTime: metav1.Now(),
				Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting"})
			return now, nil
		}), false, nil)
	if err != nil {
		return storeerr.InterpretUpdateError(err, e.pods.Kind.GroupResource(), pod.Name)
	}
	if preconditions.ResourceVersion != nil {
		// The condition changed the resource version: the deletion must refer to the new one.
		deletion.Preconditions.ResourceVersion = &updated.ResourceVersion
	}
	return nil
}
