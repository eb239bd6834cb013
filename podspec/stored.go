package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateStored gives everything that an API server refuses in a defaulted pod,
// new or changed. It takes all that Validate takes, and what only the node that
// runs the pod can judge: names that may come to mean something, fields that
// another agent may honour.
func ValidateStored(pod *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.metadata(&pod.ObjectMeta)
	k.appArmorAnnotations(field.NewPath("metadata", "annotations"))
	k.podSpec(field.NewPath("spec"))
	return k.errs
}

// ValidateCreate is ValidateStored for a pod that is new: some fields are only
// for pods that exist.
func ValidateCreate(pod *corev1.Pod) field.ErrorList {
	errs := ValidateStored(pod)
	if len(pod.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "ephemeralContainers"), "cannot be set on create"))
	}
	return errs
}

// ValidateTemplate gives everything that is wrong with a defaulted template of
// pods that stands at a path, as "spec.template".
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
	// The pod's paths begin at the pod; here it is a part of something.
	for _, err := range k.errs {
		err.Field = at.String() + "." + err.Field
	}
	return append(errs, k.errs...)
}

// reference judges the name of an object that the pod needs. On a node it must
// be one that can exist; an API server only wants that there is one.
func (k *validator) reference(at *field.Path, name string) {
	if k.stored && name != "" {
		return
	}
	k.name(at, name, utilvalidation.IsDNS1123Subdomain)
}

// ValidateTolerations judges tolerations that stand at a path.
func ValidateTolerations(list []corev1.Toleration, at *field.Path) field.ErrorList {
	k := &validator{stored: true}
	for i := range list {
		k.toleration(at.Index(i), &list[i])
	}
	return k.errs
}
