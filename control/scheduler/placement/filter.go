package placement

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
)

// The reasons that kubectl's users know from FailedScheduling.
const (
	reasonUnschedulable = "node(s) were unschedulable"
	reasonName          = "node(s) didn't match the requested node name"
	reasonAffinity      = "node(s) didn't match Pod's node affinity/selector"
	reasonVolume        = "node(s) didn't match PersistentVolume's node affinity"
	reasonPorts         = "node(s) didn't have free ports for the requested pod ports"
	reasonTooMany       = "Too many pods"
	reasonSpread        = "node(s) didn't match pod topology spread constraints"
	reasonSpreadLabel   = reasonSpread + " (missing required label)"
	reasonNear          = "node(s) didn't match pod affinity rules"
	reasonApart         = "node(s) didn't match pod anti-affinity rules"
	reasonOthersApart   = "node(s) didn't satisfy existing pods anti-affinity rules"
	reasonNotHelpful    = "Preemption is not helpful for scheduling"
	reasonNoVictims     = "No preemption victims found for incoming pod"
	reasonNeverPreempts = "not eligible due to preemptionPolicy=Never."
	reasonRoomIsComing  = "not eligible due to a terminating pod on the nominated node."
)

// Refusal is why a node will not have a pod.
type Refusal struct {
	Reasons []string
	Rule    Rule
	Final   bool // no pod that goes makes room here
}

// Rule names what refused, so that a pod is looked at again when that changes.
type Rule string

// The rules, by the names of upstream's plugins.
const (
	RuleUnschedulable Rule = "NodeUnschedulable"
	RuleName          Rule = "NodeName"
	RuleTaints        Rule = "TaintToleration"
	RuleAffinity      Rule = "NodeAffinity"
	RuleVolumes       Rule = "VolumeBinding"
	RulePorts         Rule = "NodePorts"
	RuleResources     Rule = "NodeResourcesFit"
	RuleSpread        Rule = "PodTopologySpread"
	RulePodAffinity   Rule = "InterPodAffinity"
)

// question is a pod to place, with all that is counted over the whole cluster.
type question struct {
	*subject
	cluster *Cluster
	volumes []*corev1.NodeSelector // where its volumes can be
	spread  []spread
	company company
}

func (c *Cluster) ask(pod *corev1.Pod, volumes []*corev1.NodeSelector) *question {
	q := &question{subject: newSubject(pod), cluster: c, volumes: volumes}
	q.spread = q.countSpread(corev1.DoNotSchedule)
	q.company = q.countCompany()
	return q
}

// supposing is the question with its own counts, to suppose changes in.
func (q *question) supposing() *question {
	out := *q
	out.spread = make([]spread, len(q.spread))
	for i, s := range q.spread {
		s.counts = maps.Clone(s.counts)
		out.spread[i] = s
	}
	out.company = q.company.clone()
	return &out
}

// suppose counts a pod on a node in (by 1) or out (by -1).
func (q *question) suppose(at *node, other *subject, by int) {
	for i := range q.spread {
		q.spread[i].count(q, at, other, by)
	}
	q.company.count(q, at, other, by)
}

// refusal is why the node will not have the pod beside what is used of it; nil:
// it would. The first rule that refuses ends the asking, cheap ones first.
func (q *question) refusal(at *node, used admission.Used) *Refusal {
	pod := q.pod
	switch {
	case at.unschedulable && !admission.Tolerated(corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, pod.Spec.Tolerations):
		return &Refusal{[]string{reasonUnschedulable}, RuleUnschedulable, true}
	case len(admission.NodeName(at.Node, pod)) > 0:
		return &Refusal{[]string{reasonName}, RuleName, true}
	}
	for _, t := range at.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, pod.Spec.Tolerations) {
			return &Refusal{[]string{fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value)}, RuleTaints, true}
		}
	}
	if !admission.MatchesSelectors(at.Node, pod) {
		return &Refusal{[]string{reasonAffinity}, RuleAffinity, true}
	}
	for _, v := range q.volumes {
		if !slices.ContainsFunc(v.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return admission.MatchesTerm(at.Node, t) }) {
			return &Refusal{[]string{reasonVolume}, RuleVolumes, true}
		}
	}
	if len(admission.HostPorts(used, pod)) > 0 {
		return &Refusal{[]string{reasonPorts}, RulePorts, false}
	}
	if r := short(at, used, pod); r != nil {
		return r
	}
	if r := q.refusalBySpread(at); r != nil {
		return r
	}
	return q.refusalByCompany(at)
}

// short names each resource of which too little is left.
func short(at *node, used admission.Used, pod *corev1.Pod) *Refusal {
	refusals := admission.Resources(at.Node, used, pod)
	if len(refusals) == 0 {
		return nil
	}
	out := &Refusal{Rule: RuleResources}
	for _, r := range refusals {
		reason := "Insufficient " + string(r.Resource)
		if r.Resource == corev1.ResourcePods {
			reason = reasonTooMany
		}
		out.Reasons = append(out.Reasons, reason)
		out.Final = out.Final || r.Requested > r.Capacity
	}
	return out
}

// refusalBeside asks with the pods that wait for room on the node and go first,
// and, should they end up elsewhere, without.
func (q *question) refusalBeside(at *node, used admission.Used) *Refusal {
	var first []*subject
	for uid, other := range at.nominated {
		if uid != q.pod.UID && other.priority >= q.priority {
			first = append(first, other)
		}
	}
	if len(first) > 0 {
		with, full := q.supposing(), used
		for _, other := range first {
			with.suppose(at, other, 1)
			full.Add(other.pod)
		}
		if r := with.refusal(at, full); r != nil {
			return r
		}
	}
	return q.refusal(at, used)
}
