package daemonset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"berth/admission"
)

// ShouldRun reports whether a node should run a pod of the set, and whether a pod that is on the node may stay.
func ShouldRun(set *appsv1.DaemonSet, node *corev1.Node) (run, stay bool) {
	spec := &set.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false, false
	}
	if !admission.MatchesSelectors(admission.Node{Name: node.Name, Labels: node.Labels}, &corev1.Pod{Spec: *spec}) {
		return false, false
	}
	run, stay = true, true
	tolerations := withTolerations(spec)
	for _, taint := range node.Spec.Taints {
		if admission.Tolerated(taint, tolerations) {
			continue
		}
		switch taint.Effect {
		case corev1.TaintEffectNoExecute:
			run, stay = false, false
		case corev1.TaintEffectNoSchedule:
			run = false
		case corev1.TaintEffectPreferNoSchedule:
		}
	}
	return run, stay
}

// withTolerations returns the tolerations of the pods: those of the template and those that let a pod run on a node
// that is not ready, unreachable, cordoned or under pressure.
func withTolerations(spec *corev1.PodSpec) []corev1.Toleration {
	added := []struct {
		key    string
		effect corev1.TaintEffect
	}{
		{corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute},
		{corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule},
		{corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule},
	}
	if !spec.HostNetwork {
		added = added[:len(added)-1]
	}
	out := slices.Clone(spec.Tolerations)
	for _, a := range added {
		t := corev1.Toleration{Key: a.key, Operator: corev1.TolerationOpExists, Effect: a.effect}
		i := slices.IndexFunc(out, func(o corev1.Toleration) bool { return o.MatchToleration(&t) })
		switch {
		case i < 0:
			out = append(out, t)
		case !apiequality.Semantic.DeepEqual(out[i], t):
			out[i] = t
		}
	}
	return out
}

// pinned returns the affinity of a pod that only the node may run.
func pinned(affinity *corev1.Affinity, node string) *corev1.Affinity {
	out := affinity.DeepCopy()
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}
	return out
}

// NodeOf returns the name of the node that a pod runs on or is pinned to. It is empty for a pod without either.
func NodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}
