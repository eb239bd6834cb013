package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateStored returns every error that an API server reports for a pod with defaults, new or
// changed. It accepts everything that Validate accepts, and what only the node that runs the pod
// can validate: names that may become valid, fields that another agent may support.
func ValidateStored(pod *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.metadata(&pod.ObjectMeta)
	k.appArmorAnnotations(field.NewPath("metadata", "annotations"))
	k.podSpec(field.NewPath("spec"))
	return k.errs
}

// ValidateCreate is ValidateStored for a new pod. Some fields are only allowed in existing pods.
func ValidateCreate(pod *corev1.Pod) field.ErrorList {
	errs := ValidateStored(pod)
	if len(pod.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
	}
	return errs
}

// ValidateTemplate returns every error of a pod template with defaults at a path, such as
// "spec.template".
func ValidateTemplate(t *corev1.PodTemplateSpec, at *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabels(t.Labels, at.Child("labels"))
	errs = append(errs, validation.ValidateAnnotations(t.Annotations, at.Child("annotations"))...)
	pod := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	k := &validator{pod: pod, spec: &pod.Spec, stored: true, template: true}
	k.appArmorAnnotations(field.NewPath("metadata", "annotations"))
	k.podSpec(field.NewPath("spec"))
	if len(t.Spec.EphemeralContainers) > 0 {
		k.forbidden(field.NewPath("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
	// Paths are relative to the pod, which is a part of another object here.
	for _, err := range k.errs {
		err.Field = at.String() + "." + err.Field
	}
	return append(errs, k.errs...)
}

// reference validates the name of an object that the pod refers to. On a node it must be a valid
// name. An API server only requires a name.
func (k *validator) reference(at *field.Path, name string) {
	if k.stored && name != "" {
		return
	}
	k.name(at, name, utilvalidation.IsDNS1123Subdomain)
}

// ValidateTolerations validates tolerations at a path.
func ValidateTolerations(list []corev1.Toleration, at *field.Path) field.ErrorList {
	k := &validator{stored: true}
	for i := range list {
		k.toleration(at.Index(i), &list[i])
	}
	return k.errs
}
