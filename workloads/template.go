package workloads

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodFromTemplate returns a new pod of the owner in its namespace. Its name is generated from the owner's name unless
// the caller sets another. The pod shares nothing with the template.
func PodFromTemplate(owner Object, kind metav1.TypeMeta, template *corev1.PodTemplateSpec) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    podNamePrefix(owner.GetName()),
			Namespace:       owner.GetNamespace(),
			Labels:          cloneMap(template.Labels),
			Annotations:     cloneMap(template.Annotations),
			Finalizers:      slices.Clone(template.Finalizers),
			OwnerReferences: []metav1.OwnerReference{ControllerRef(owner, kind)},
		},
		Spec: *template.Spec.DeepCopy(),
	}
}

// podNamePrefix is the name with a dash, or the name alone if the dash makes it invalid.
func podNamePrefix(name string) string {
	if prefix := name + "-"; len(validation.NameIsDNSSubdomain(prefix, true)) == 0 {
		return prefix
	}
	return name
}

// cloneMap returns a copy that is never nil.
func cloneMap(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	maps.Copy(out, m)
	return out
}
