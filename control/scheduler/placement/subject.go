package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"berth/podspec"
)

// subject is a pod with what the rules ask about it again and again.
type subject struct {
	pod      *corev1.Pod
	priority int32
	wished   amounts
	terms    terms
}

func newSubject(pod *corev1.Pod) *subject {
	return &subject{pod: pod, priority: podspec.Priority(pod), wished: wishesOf(pod), terms: termsOf(pod)}
}

// terms are a pod's wishes about other pods, compiled.
type terms struct {
	near, apart             []term // required
	preferNear, preferApart []term // with weights
}

func (t terms) any() bool {
	return len(t.near)+len(t.apart)+len(t.preferNear)+len(t.preferApart) > 0
}

// term selects pods and says by which label nodes are one place.
type term struct {
	topologyKey string
	pods        labels.Selector
	namespaces  []string        // by name
	byLabels    labels.Selector // namespaces by their labels
	weight      int64
}

// matches reports whether a pod is one that the term is about.
func (t term) matches(pod *corev1.Pod, namespaces map[string]labels.Set) bool {
	in := slices.Contains(t.namespaces, pod.Namespace) || t.byLabels.Matches(namespaces[pod.Namespace])
	return in && t.pods.Matches(labels.Set(pod.Labels))
}

func termsOf(pod *corev1.Pod) (out terms) {
	a := pod.Spec.Affinity
	if a == nil {
		return out
	}
	if near := a.PodAffinity; near != nil {
		out.near = compile(pod, near.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferNear = compileWeighted(pod, near.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if apart := a.PodAntiAffinity; apart != nil {
		out.apart = compile(pod, apart.RequiredDuringSchedulingIgnoredDuringExecution)
		out.preferApart = compileWeighted(pod, apart.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return out
}

func compile(pod *corev1.Pod, list []corev1.PodAffinityTerm) []term {
	out := make([]term, 0, len(list))
	for _, t := range list {
		out = append(out, termOf(pod, t))
	}
	return out
}

func compileWeighted(pod *corev1.Pod, list []corev1.WeightedPodAffinityTerm) []term {
	out := make([]term, 0, len(list))
	for _, w := range list {
		t := termOf(pod, w.PodAffinityTerm)
		t.weight = int64(w.Weight)
		out = append(out, t)
	}
	return out
}

func termOf(pod *corev1.Pod, t corev1.PodAffinityTerm) term {
	out := term{
		topologyKey: t.TopologyKey, namespaces: t.Namespaces,
		pods: selector(t.LabelSelector), byLabels: selector(t.NamespaceSelector),
	}
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		out.namespaces = []string{pod.Namespace}
	}
	out.pods = alsoBy(out.pods, pod, t.MatchLabelKeys, selection.In)
	out.pods = alsoBy(out.pods, pod, t.MismatchLabelKeys, selection.NotIn)
	return out
}

// selector compiles one; nil, or one that makes no sense, selects nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// alsoBy narrows a selector by the pod's own values of some labels. Doing it
// twice, here and in a server that writes it into the pod, changes nothing.
func alsoBy(s labels.Selector, pod *corev1.Pod, keys []string, op selection.Operator) labels.Selector {
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
