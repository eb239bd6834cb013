package placements

import (
	"fmt"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// priorities are the PriorityClasses of pods.
var priorities = map[string]int32{"low": 100, "middle": 1000, "high": 10000, neverPreempts: 5000}

// neverPreempts is the PriorityClass with the preemption policy Never.
const neverPreempts = "patient"

// newPod returns the pod with a number.
func newPod(c *cluster, number int, r *rand.Rand) *corev1.Pod {
	ns, app := pick(r, c.namespaces...).Name, pick(r, apps...)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", number), Namespace: ns,
		Labels: map[string]string{"app": app, "version": fmt.Sprint(r.IntN(2))}}}
	if chance(r, 60) {
		p.OwnerReferences = []metav1.OwnerReference{controllerOf(c, ns, app)}
	}
	p.Spec.Containers = []corev1.Container{newContainer("main", r)}
	if chance(r, 25) {
		p.Spec.Containers = append(p.Spec.Containers, newContainer("second", r))
	}
	if chance(r, 20) {
		p.Spec.InitContainers = []corev1.Container{newContainer("init", r)}
	}
	if chance(r, 10) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: pick[int32](r, 8080, 8081)}}
	}
	if chance(r, 50) {
		p.Spec.PriorityClassName = pick(r, "low", "middle", "high", "low", "middle", "high", neverPreempts)
	}
	addNodeRules(p, r)
	addPodRules(p, app, r)
	addSpread(p, app, r)
	return p
}

func controllerOf(c *cluster, namespace, app string) metav1.OwnerReference {
	for _, set := range c.sets {
		if set.Namespace == namespace && set.Name == app {
			return *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
		}
	}
	panic("no ReplicaSet " + app)
}

func newContainer(name string, r *rand.Rand) corev1.Container {
	requests := corev1.ResourceList{}
	if chance(r, 70) {
		requests[corev1.ResourceCPU] = quantity("%dm", 50*(1+r.IntN(20)))
	}
	if chance(r, 70) {
		requests[corev1.ResourceMemory] = quantity("%dMi", 32*(1+r.IntN(24)))
	}
	if chance(r, 10) {
		requests[corev1.ResourceEphemeralStorage] = quantity("%dGi", 1+r.IntN(4))
	}
	out := corev1.Container{Name: name, Image: pick(r, "example.com/small:1", "example.com/large:1",
		"example.com/huge", "example.com/other:1"), Resources: corev1.ResourceRequirements{Requests: requests}}
	if name == "main" && chance(r, 8) {
		requests[gpu] = quantity("1")
		out.Resources.Limits = corev1.ResourceList{gpu: quantity("1")}
	}
	return out
}

func in(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func term(r *rand.Rand) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{pick(r,
		in("disk", "ssd"), in("disk", "hdd"), in(corev1.LabelTopologyZone, "zone-a", "zone-b"),
		corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpExists},
		corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"hdd"}},
		corev1.NodeSelectorRequirement{Key: "rank", Operator: corev1.NodeSelectorOpGt, Values: []string{"1"}},
		corev1.NodeSelectorRequirement{Key: "rank", Operator: corev1.NodeSelectorOpLt, Values: []string{"2"}})}}
}

// addNodeRules adds a node selector, node affinity and tolerations.
func addNodeRules(p *corev1.Pod, r *rand.Rand) {
	if chance(r, 10) {
		p.Spec.NodeSelector = map[string]string{"disk": pick(r, "ssd", "hdd")}
	}
	affinity := &corev1.NodeAffinity{}
	if chance(r, 10) {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{term(r), term(r)}}
	}
	for chance(r, 25) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: int32(1 + r.IntN(100)), Preference: term(r)})
	}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity}
	if chance(r, 20) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "dedicated",
			Operator: corev1.TolerationOpEqual, Value: pick(r, "gpu", "db"),
			Effect: pick(r, "", corev1.TaintEffectNoSchedule)})
	}
	if chance(r, 15) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "busy",
			Operator: corev1.TolerationOpExists, Effect: pick(r, "", corev1.TaintEffectPreferNoSchedule)})
	}
}

// addPodRules adds affinity to pods and anti-affinity.
func addPodRules(p *corev1.Pod, app string, r *rand.Rand) {
	newTerm := func() corev1.PodAffinityTerm {
		t := corev1.PodAffinityTerm{TopologyKey: pick(r, corev1.LabelHostname, corev1.LabelTopologyZone, "disk"),
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(r, app, pick(r, apps...))}}}
		switch r.IntN(5) {
		case 0:
			t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": pick(r, "red", "blue")}}
		case 1:
			t.NamespaceSelector = &metav1.LabelSelector{}
		case 2:
			t.MatchLabelKeys = []string{"version"}
		}
		return t
	}
	affinity, anti := &corev1.PodAffinity{}, &corev1.PodAntiAffinity{}
	if chance(r, 8) {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{newTerm()}
	}
	if chance(r, 8) {
		anti.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{newTerm()}
	}
	for chance(r, 20) {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
			affinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: int32(1 + r.IntN(100)), PodAffinityTerm: newTerm()})
	}
	for chance(r, 20) {
		anti.PreferredDuringSchedulingIgnoredDuringExecution = append(
			anti.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.WeightedPodAffinityTerm{Weight: int32(1 + r.IntN(100)), PodAffinityTerm: newTerm()})
	}
	p.Spec.Affinity.PodAffinity, p.Spec.Affinity.PodAntiAffinity = affinity, anti
}

// addSpread adds topology spread constraints with all their fields.
func addSpread(p *corev1.Pod, app string, r *rand.Rand) {
	if !chance(r, 25) {
		return
	}
	keys := []string{corev1.LabelHostname, corev1.LabelTopologyZone}
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys[:1+r.IntN(2)] {
		s := corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: int32(1 + r.IntN(3)),
			WhenUnsatisfiable: pick(r, corev1.DoNotSchedule, corev1.ScheduleAnyway),
			LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
		if s.WhenUnsatisfiable == corev1.DoNotSchedule && chance(r, 30) {
			s.MinDomains = new(int32(1 + r.IntN(4)))
		}
		if chance(r, 30) {
			s.NodeAffinityPolicy = new(pick(r, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
		}
		if chance(r, 30) {
			s.NodeTaintsPolicy = new(pick(r, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
		}
		if chance(r, 20) {
			s.MatchLabelKeys = []string{"version"}
		}
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, s)
	}
}
