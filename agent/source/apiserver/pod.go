package apiserver

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/podspec"
)

// normalize sets the annotation and defaults of a pod from the server. It changes the pod.
func normalize(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[source.AnnotationSource] = source.APIServer
	podspec.SetDefaults(pod) // a server of another release may not know all fields
	return pod
}

// keysOf returns the objects that a pod uses while it may run.
func keysOf(pod *corev1.Pod, phase corev1.PodPhase) (keys []source.ObjectKey) {
	if phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		return nil
	}
	for _, r := range podspec.References(pod) {
		keys = append(keys, source.KeyOf(pod, plan.Ref{Kind: plan.RefKind(r.Kind), Name: r.Name}))
	}
	return keys
}

// sameDesired reports whether two versions of a pod have the same desired state. This node's own
// status updates come back as new versions.
func sameDesired(a, b *corev1.Pod) bool {
	return a.Generation == b.Generation && a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		slices.EqualFunc(
			foreignConditions(a),
			foreignConditions(b),
			func(x, y corev1.PodCondition) bool { return equality.Semantic.DeepEqual(x, y) },
		)
}

// foreignConditions returns the conditions that this node does not own.
func foreignConditions(pod *corev1.Pod) (out []corev1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		if !plan.OwnsCondition(c.Type) {
			out = append(out, c)
		}
	}
	return out
}
