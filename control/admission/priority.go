package admission

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
)

type priority struct {
	*admission.Handler

	classes schedulinglisters.PriorityClassLister
	client  kubernetes.Interface
}

func newPriority(c Config) (admission.Interface, error) {
	return &priority{admission.NewHandler(admission.Create, admission.Update),
		c.Informers.Scheduling().V1().PriorityClasses().Lister(), c.Client}, nil
}

// Admit sets the priority and the preemption policy of a pod from its priority class.
func (p *priority) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok {
		return nil
	}
	if a.GetOperation() == admission.Update {
		// Omitted fields keep their values in an update.
		if old, ok := a.GetOldObject().(*corev1.Pod); ok {
			pod.Spec.Priority = cmp.Or(pod.Spec.Priority, old.Spec.Priority)
			pod.Spec.PreemptionPolicy = cmp.Or(pod.Spec.PreemptionPolicy, old.Spec.PreemptionPolicy)
		}
		return nil
	}
	value, policy, err := p.resolve(ctx, a, pod)
	if err != nil {
		return err
	}
	if have := pod.Spec.Priority; have != nil && *have != value {
		return admission.NewForbidden(a,
			fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; "+
				"priority admission controller computed %d from the given PriorityClass name", *have, value))
	}
	if have := pod.Spec.PreemptionPolicy; have != nil && *have != policy {
		return admission.NewForbidden(a,
			fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in "+
				"pod spec; priority admission controller computed %s from the given PriorityClass name", *have, policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	return nil
}

func (p *priority) resolve(ctx context.Context, a admission.Attributes,
	pod *corev1.Pod) (int32, corev1.PreemptionPolicy, error) {
	class, err := p.classOf(ctx, pod.Spec.PriorityClassName)
	switch {
	case apierrors.IsNotFound(err):
		return 0, "", admission.NewForbidden(a, fmt.Errorf("no PriorityClass with name %v was found",
			pod.Spec.PriorityClassName))
	case err != nil:
		return 0, "", err
	case class == nil:
		return 0, corev1.PreemptLowerPriority, nil
	}
	pod.Spec.PriorityClassName = class.Name
	if class.PreemptionPolicy != nil {
		return class.Value, *class.PreemptionPolicy, nil
	}
	return class.Value, corev1.PreemptLowerPriority, nil
}

// classOf returns the named class. Without a name it returns the default class, or nil if there is
// none.
func (p *priority) classOf(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		return p.defaultClass()
	}
	class, err := p.classes.Get(name)
	if apierrors.IsNotFound(err) {
		// The class may be newer than the cache.
		return p.client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	}
	return class, err
}

// defaultClass returns the default class. If several were created concurrently, it returns the one
// with the lowest value.
func (p *priority) defaultClass() (found *schedulingv1.PriorityClass, _ error) {
	all, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.GlobalDefault && (found == nil || c.Value < found.Value) {
			found = c
		}
	}
	return found, nil
}

// Validate allows only one default class.
func (p *priority) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !isResource(a, "scheduling.k8s.io", "priorityclasses") || a.GetSubresource() != "" {
		return nil
	}
	class, ok := a.GetObject().(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	other, err := p.defaultClass()
	if err != nil {
		return err
	}
	if other != nil && other.Name != class.Name {
		return admission.NewForbidden(a,
			fmt.Errorf("PriorityClass %v is already marked as default. Only one default can "+
				"exist", other.Name))
	}
	return nil
}

// EnsurePriorityClasses creates the two system priority classes if they are missing.
func EnsurePriorityClasses(ctx context.Context, client kubernetes.Interface) error {
	for _, class := range []schedulingv1.PriorityClass{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical"}, Value: 2_000_001_000,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical"}, Value: 2_000_000_000,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to " +
				"another node if " +
				"necessary.",
		},
	} {
		policy := corev1.PreemptLowerPriority
		class.PreemptionPolicy = &policy
		_, err := client.SchedulingV1().PriorityClasses().Create(ctx, &class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create priority class %s: %w", class.Name, err)
		}
	}
	return nil
}
