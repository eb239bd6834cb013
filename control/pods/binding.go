package pods

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"berth/control/registry"
)

var bindings = schema.GroupResource{Resource: "pods/binding"}

// Binding implements pods/binding: it assigns a pod to a node. A pod is bound once.
type Binding struct{ pods *registry.Store }

var _ rest.NamedCreater = (*Binding)(nil)

// New returns an empty binding.
func (b *Binding) New() runtime.Object { return &corev1.Binding{} }

// Destroy does nothing: the main resource owns the storage.
func (b *Binding) Destroy() {}

// Create binds the named pod.
func (b *Binding) Create(
	ctx context.Context,
	name string,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(binding); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Binding").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, binding.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := b.assign(ctx, binding, options != nil && dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func validateBinding(binding *corev1.Binding) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("target")
	if k := binding.Target.Kind; k != "" && k != "Node" {
		errs = append(errs, field.NotSupported(at.Child("kind"), k, []string{"Node", "<empty>"}))
	}
	if binding.Target.Name == "" {
		errs = append(errs, field.Required(at.Child("name"), ""))
	} else {
		for _, message := range validation.NameIsDNSSubdomain(binding.Target.Name, false) {
			errs = append(errs, field.Invalid(at.Child("name"), binding.Target.Name, message))
		}
	}
	return errs
}

// assign writes the node name to the pod.
func (b *Binding) assign(ctx context.Context, binding *corev1.Binding, dryRun bool) error {
	key, err := b.pods.KeyFunc(ctx, binding.Name)
	if err != nil {
		return err
	}
	var preconditions *storage.Preconditions
	if binding.UID != "" || binding.ResourceVersion != "" {
		preconditions = &storage.Preconditions{}
		if binding.UID != "" {
			preconditions.UID = &binding.UID
		}
		if binding.ResourceVersion != "" {
			preconditions.ResourceVersion = &binding.ResourceVersion
		}
	}
	var bindErr error
	err = b.pods.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, preconditions,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			pod := registry.MustCast[*corev1.Pod](obj)
			bindErr = bind(pod, binding)
			return pod, bindErr
		}), dryRun, nil)
	switch {
	case err == nil:
		return nil
	case bindErr != nil:
		return apierrors.NewConflict(bindings, binding.Name, bindErr)
	}
	return storeerr.InterpretUpdateError(err, bindings, binding.Name)
}

// bind changes the pod, or returns an error if it cannot be bound.
func bind(pod *corev1.Pod, binding *corev1.Binding) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %s is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %s has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = binding.Target.Name
	pod.Status.NominatedNodeName = ""
	pod.Annotations = merged(pod.Annotations, binding.Annotations)
	pod.Labels = merged(pod.Labels, binding.Labels)
	setCondition(
		&pod.Status,
		corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()},
	)
	return nil
}

func merged(to, more map[string]string) map[string]string {
	if to == nil && len(more) > 0 {
		to = map[string]string{}
	}
	maps.Copy(to, more)
	return to
}

// setCondition adds a condition or replaces the one of its type. It keeps the transition time if
// the status does not change.
func setCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	for i := range s.Conditions {
		if existing := &s.Conditions[i]; existing.Type == c.Type {
			if existing.Status == c.Status {
				c.LastTransitionTime = existing.LastTransitionTime
			}
			c.LastProbeTime = existing.LastProbeTime
			*existing = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// Bindings implements the resource bindings, which older schedulers use.
type Bindings struct{ binding *Binding }

var (
	_ rest.Creater              = (*Bindings)(nil)
	_ rest.Scoper               = (*Bindings)(nil)
	_ rest.SingularNameProvider = (*Bindings)(nil)
)

// New returns an empty binding.
func (b *Bindings) New() runtime.Object { return &corev1.Binding{} }

// Destroy does nothing: the main resource owns the storage.
func (b *Bindings) Destroy() {}

// NamespaceScoped returns true.
func (b *Bindings) NamespaceScoped() bool { return true }

// GetSingularName returns "binding".
func (b *Bindings) GetSingularName() string { return "binding" }

// Create binds the pod with the name of the binding.
func (b *Bindings) Create(
	ctx context.Context,
	obj runtime.Object,
	validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions,
) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	return b.binding.Create(ctx, binding.Name, obj, validate, options)
}
