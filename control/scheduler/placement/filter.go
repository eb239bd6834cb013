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
	reasonUnschedulable        = "node(s) were unschedulable"
	reasonName                 = "node(s) didn't match the requested node name"
	reasonAffinity             = "node(s) didn't match Pod's node affinity/selector"
	reasonVolume               = "node(s) didn't match PersistentVolume's node affinity"
	reasonPorts                = "node(s) didn't have free ports for the requested pod ports"
	reasonTooManyPods          = "Too many pods"
	reasonSpread               = "node(s) didn't match pod topology spread constraints"
	reasonSpreadLabel          = reasonSpread + " (missing required label)"
	reasonPodAffinity          = "node(s) didn't match pod affinity rules"
	reasonPodAntiAffinity      = "node(s) didn't match pod anti-affinity rules"
	reasonExistingAntiAffinity = "node(s) didn't satisfy existing pods anti-affinity rules"
	reasonNotHelpful           = "Preemption is not helpful for scheduling"
	reasonNoVictims            = "No preemption victims found for incoming pod"
	reasonNeverPreempts        = "not eligible due to preemptionPolicy=Never."
	reasonVictimsTerminating   = "not eligible due to a terminating pod on the nominated node."
)

// Rejection is why a node will not have a pod.
type Rejection struct {
	Reasons      []string
	Filter       Filter
	Unresolvable bool // no pod that goes makes room here
}

// Filter names what refused, so that a pod is looked at again when that changes.
type Filter string

// The rules, by the names of upstream's plugins.
const (
	FilterNodeUnschedulable Filter = "NodeUnschedulable"
	FilterNodeName          Filter = "NodeName"
	FilterTaintToleration   Filter = "TaintToleration"
	FilterNodeAffinity      Filter = "NodeAffinity"
	FilterVolumeBinding     Filter = "VolumeBinding"
	FilterNodePorts         Filter = "NodePorts"
	FilterNodeResourcesFit  Filter = "NodeResourcesFit"
	FilterPodTopologySpread Filter = "PodTopologySpread"
	FilterInterPodAffinity  Filter = "InterPodAffinity"
)

// attempt is a pod to place, with all that is counted over the whole cluster.
type attempt struct {
	*podInfo
	cluster  *Cluster
	volumes  []*corev1.NodeSelector // where its volumes can be
	spread   []spreadConstraint
	affinity affinityCounts
}

func (c *Cluster) newAttempt(pod *corev1.Pod, volumes []*corev1.NodeSelector) *attempt {
	q := &attempt{podInfo: newPodInfo(pod), cluster: c, volumes: volumes}
	q.spread = q.countSpread(corev1.DoNotSchedule)
	q.affinity = q.countAffinity()
	return q
}

// clone is the question with its own counts, to suppose changes in.
func (q *attempt) clone() *attempt {
	out := *q
	out.spread = make([]spreadConstraint, len(q.spread))
	for i, s := range q.spread {
		s.counts = maps.Clone(s.counts)
		out.spread[i] = s
	}
	out.affinity = q.affinity.clone()
	return &out
}

// simulate counts a pod on a node in (by 1) or out (by -1).
func (q *attempt) simulate(at *nodeInfo, other *podInfo, by int) {
	for i := range q.spread {
		q.spread[i].count(q, at, other, by)
	}
	q.affinity.count(q, at, other, by)
}

// filter is why the node will not have the pod beside what is used of it; nil:
// it would. The first rule that refuses ends the asking, cheap ones first.
func (q *attempt) filter(at *nodeInfo, used admission.Used) *Rejection {
	pod := q.pod
	switch {
	case at.unschedulable && !admission.Tolerated(corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, pod.Spec.Tolerations):
		return &Rejection{[]string{reasonUnschedulable}, FilterNodeUnschedulable, true}
	case len(admission.NodeName(at.Node, pod)) > 0:
		return &Rejection{[]string{reasonName}, FilterNodeName, true}
	}
	for _, t := range at.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, pod.Spec.Tolerations) {
			return &Rejection{[]string{fmt.Sprintf("node(s) had untolerated taint {%s: %s}", t.Key, t.Value)}, FilterTaintToleration, true}
		}
	}
	if !admission.MatchesSelectors(at.Node, pod) {
		return &Rejection{[]string{reasonAffinity}, FilterNodeAffinity, true}
	}
	for _, v := range q.volumes {
		if !slices.ContainsFunc(v.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool { return admission.MatchesTerm(at.Node, t) }) {
			return &Rejection{[]string{reasonVolume}, FilterVolumeBinding, true}
		}
	}
	if len(admission.HostPorts(used, pod)) > 0 {
		return &Rejection{[]string{reasonPorts}, FilterNodePorts, false}
	}
	if r := filterResources(at, used, pod); r != nil {
		return r
	}
	if r := q.filterTopologySpread(at); r != nil {
		return r
	}
	return q.filterInterPodAffinity(at)
}

// filterResources names each resource of which too little is left.
func filterResources(at *nodeInfo, used admission.Used, pod *corev1.Pod) *Rejection {
	refusals := admission.Resources(at.Node, used, pod)
	if len(refusals) == 0 {
		return nil
	}
	out := &Rejection{Filter: FilterNodeResourcesFit}
	for _, r := range refusals {
		reason := "Insufficient " + string(r.Resource)
		if r.Resource == corev1.ResourcePods {
			reason = reasonTooManyPods
		}
		out.Reasons = append(out.Reasons, reason)
		out.Unresolvable = out.Unresolvable || r.Requested > r.Capacity
	}
	return out
}

// filterWithNominated asks with the pods that wait for room on the node and go first,
// and, should they end up elsewhere, without.
func (q *attempt) filterWithNominated(at *nodeInfo, used admission.Used) *Rejection {
	var first []*podInfo
	for uid, other := range at.nominated {
		if uid != q.pod.UID && other.priority >= q.priority {
			first = append(first, other)
		}
	}
	if len(first) > 0 {
		with, full := q.clone(), used
		for _, other := range first {
			with.simulate(at, other, 1)
			full.Add(other.pod)
		}
		if r := with.filter(at, full); r != nil {
			return r
		}
	}
	return q.filter(at, used)
}
