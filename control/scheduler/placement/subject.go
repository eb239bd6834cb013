package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"berth/podspec"
)

// podInfo is a pod with what the rules ask about it again and again.
type podInfo struct {
	pod             *corev1.Pod
	priority        int32
	nonZeroRequests cpuAndMemory
	terms           affinityTerms
}

func newPodInfo(pod *corev1.Pod) *podInfo {
	return &podInfo{pod: pod, priority: podspec.Priority(pod), nonZeroRequests: nonZeroRequestsOf(pod), terms: newAffinityTerms(pod)}
}

// affinityTerms are a pod's wishes about other pods, compiled.
type affinityTerms struct {
	affinity, antiAffinity                   []affinityTerm // required
	preferredAffinity, preferredAntiAffinity []affinityTerm // with weights
}

func (t affinityTerms) any() bool {
	return len(t.affinity)+len(t.antiAffinity)+len(t.preferredAffinity)+len(t.preferredAntiAffinity) > 0
}

// affinityTerm selects pods and says by which label nodes are one place.
type affinityTerm struct {
	topologyKey       string
	podSelector       labels.Selector
	namespaces        []string        // by name
	namespaceSelector labels.Selector // namespaces by their labels
	weight            int64
}

// matches reports whether a pod is one that the term is about.
func (t affinityTerm) matches(pod *corev1.Pod, namespaces map[string]labels.Set) bool {
	in := slices.Contains(t.namespaces, pod.Namespace) || t.namespaceSelector.Matches(namespaces[pod.Namespace])
	return in && t.podSelector.Matches(labels.Set(pod.Labels))
}

func newAffinityTerms(pod *corev1.Pod) (out affinityTerms) {
	a := pod.Spec.Affinity
	if a == nil {
		return out
	}
	if near := a.PodAffinity; near != nil {
		out.affinity = compile(pod, near.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAffinity = compileWeighted(pod, near.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if apart := a.PodAntiAffinity; apart != nil {
		out.antiAffinity = compile(pod, apart.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferredAntiAffinity = compileWeighted(pod, apart.PreferredDuringSchedulingIgnoredDuringExecution)
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

// labelSelector compiles one; nil, or one that makes no sense, selects nothing.
func labelSelector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// withLabelKeys narrows a selector by the pod's own values of some labels. Doing it
// twice, here and in a server that writes it into the pod, changes nothing.
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
