package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// defaultTolerationSeconds is how long a pod stays bound to a node that is not ready or
// unreachable, unless the pod has its own toleration.
const defaultTolerationSeconds int64 = 300

type tolerations struct{ *admission.Handler }

func newTolerations(Config) (admission.Interface, error) {
	return tolerations{admission.NewHandler(admission.Create, admission.Update)}, nil
}

// Admit adds the missing ones of the two tolerations.
func (tolerations) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := podOf(a)
	if !ok {
		return nil
	}
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if tolerates(pod.Spec.Tolerations, taint) {
			continue
		}
		seconds := defaultTolerationSeconds
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: &seconds,
		})
	}
	return nil
}

// tolerates reports whether the pod has its own toleration of the taint.
func tolerates(tolerations []corev1.Toleration, taint string) bool {
	for _, t := range tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
