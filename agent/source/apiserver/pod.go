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

// normalize is a pod of the server as this node's: it changes it.
func normalize(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = maps.Clone(pod.Annotations)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[source.AnnotationSource] = source.APIServer
	podspec.SetDefaults(pod) // the server has done so; a server of another release may not know all fields
	return pod
}

// keysOf names what a pod uses, as long as it may yet run.
func keysOf(pod *corev1.Pod, phase corev1.PodPhase) (keys []source.ObjectKey) {
	if phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		return nil
	}
	for _, r := range podspec.References(pod) {
		keys = append(keys, source.KeyOf(pod, plan.Ref{Kind: plan.RefKind(r.Kind), Name: r.Name}))
	}
	return keys
}

// sameDesired reports whether a newer version of a pod wants nothing else. What this
// node has reported itself comes back as a newer version.
func sameDesired(a, b *corev1.Pod) bool {
	return a.Generation == b.Generation && a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		equality.Semantic.DeepEqual(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds) &&
		maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(&a.Spec, &b.Spec) &&
		slices.EqualFunc(foreignConditions(a), foreignConditions(b), func(x, y corev1.PodCondition) bool { return equality.Semantic.DeepEqual(x, y) })
}

// foreignConditions are the conditions that are not this node's to write.
func foreignConditions(pod *corev1.Pod) (out []corev1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		if !plan.OwnsCondition(c.Type) {
			out = append(out, c)
		}
	}
	return out
}
