package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"berth/podspec"
)

// podInfo is a pod with precomputed scheduling data.
type podInfo struct {
	pod             *corev1.Pod
	priority        int32
	requests        cpuAndMemory
	nonZeroRequests cpuAndMemory // with defaults for missing requests
	terms           affinityTerms
	features        []podspec.Feature // that not every node supports, sorted
}

func newPodInfo(pod *corev1.Pod) *podInfo {
	return &podInfo{pod: pod, priority: podspec.Priority(pod), requests: requestsOf(pod),
		nonZeroRequests: nonZeroRequestsOf(pod), terms: newAffinityTerms(pod), features: featuresOf(pod)}
}

// featuresOf returns the features of a pod that not every node supports, sorted.
func featuresOf(pod *corev1.Pod) (out []podspec.Feature) {
	for _, u := range podspec.FeatureUses(pod) {
		out = append(out, u.Feature)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// affinityTerms are the compiled inter-pod affinity terms of a pod.
type affinityTerms struct {
	affinity, antiAffinity                   []affinityTerm // required
	preferredAffinity, preferredAntiAffinity []affinityTerm // weighted
}

func (t affinityTerms) any() bool {
	return len(t.affinity)+len(t.antiAffinity)+len(t.preferredAffinity)+len(t.preferredAntiAffinity) > 0
}

// affinityTerm selects pods and defines by which label nodes form a domain.
type affinityTerm struct {
	topologyKey       string
	podSelector       labels.Selector
	namespaces        []string        // by name
	namespaceSelector labels.Selector // by labels
	weight            int64
}

// matches reports whether the term selects the pod.
func (t affinityTerm) matches(pod *corev1.Pod, namespaces map[string]labels.Set) bool {
	namespaceMatches := slices.Contains(t.namespaces, pod.Namespace) ||
		t.namespaceSelector.Matches(namespaces[pod.Namespace])
	return namespaceMatches && t.podSelector.Matches(labels.Set(pod.Labels))
}

func newAffinityTerms(pod *corev1.Pod) (out affinityTerms) {
	affinity := pod.Spec.Affinity
	if affinity == nil {
		return out
	}
	if podAffinity := affinity.PodAffinity; podAffinity != nil {
		out.affinity = compile(pod, podAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAffinity = compileWeighted(pod, podAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if podAntiAffinity := affinity.PodAntiAffinity; podAntiAffinity != nil {
		out.antiAffinity = compile(pod, podAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAntiAffinity = compileWeighted(pod,
			podAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

func compile(pod *corev1.Pod, list []corev1.PodAffinityTerm) []affinityTerm {
	out := make([]affinityTerm, 0, len(list))
	for _, t := range list {
		out = append(out, newAffinityTerm(pod, t))
	}
	return out
}

func compileWeighted(pod *corev1.Pod, list []corev1.WeightedPodAffinityTerm) []affinityTerm {
	out := make([]affinityTerm, 0, len(list))
	for _, w := range list {
		t := newAffinityTerm(pod, w.PodAffinityTerm)
		t.weight = int64(w.Weight)
		out = append(out, t)
	}
	return out
}

func newAffinityTerm(pod *corev1.Pod, t corev1.PodAffinityTerm) affinityTerm {
	out := affinityTerm{
		topologyKey: t.TopologyKey, namespaces: t.Namespaces,
		podSelector: labelSelector(t.LabelSelector), namespaceSelector: labelSelector(t.NamespaceSelector),
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		out.namespaces = []string{pod.Namespace}
	}
	out.podSelector = withLabelKeys(out.podSelector, pod, t.MatchLabelKeys, selection.In)
	out.podSelector = withLabelKeys(out.podSelector, pod, t.MismatchLabelKeys, selection.NotIn)
	return out
}

// labelSelector compiles a selector. A nil or invalid selector selects nothing.
func labelSelector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// withLabelKeys adds requirements for the pod's own values of the label keys. It is idempotent,
// because an API server may have written them into the selector already.
func withLabelKeys(s labels.Selector, pod *corev1.Pod, keys []string, op selection.Operator) labels.Selector {
	for _, key := range keys {
		value, ok := pod.Labels[key]
		if !ok {
			continue
		}
		if r, err := labels.NewRequirement(key, op, []string{value}); err == nil {
			s = s.Add(*r)
		}
	}
	return s
}
