package placement

import (
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/admission"
	"berth/control/volumes"
	"berth/podspec"
)

// Reasons in FailedScheduling messages, as in kube-scheduler.
const (
	reasonUnschedulable  = "node(s) were unschedulable"
	reasonName           = "node(s) didn't match the requested node name"
	reasonTaint          = "node(s) had untolerated taint(s)"
	reasonAffinity       = "node(s) didn't match Pod's node affinity/selector"
	reasonPodFeatures    = "node(s) didn't support pod features "
	reasonVolume         = "node(s) didn't match PersistentVolume's node affinity"
	reasonMissingVolume  = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	reasonVolumeZone     = "node(s) had no available volume zone"
	reasonMaxVolumes     = "node(s) exceed max volume count"
	reasonNoDriver       = " CSI driver is not installed on the node"
	reasonSinglePodClaim = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode " +
		"already in-use by another pod"
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

// Rejection is why a node cannot run a pod.
type Rejection struct {
	Reasons      []string
	Filter       Filter
	Unresolvable bool // preemption on this node cannot help
}

// Filter names the filter that rejected a node. Pods are requeued when a change may affect its
// result.
type Filter string

// The filters, with the names of kube-scheduler's plugins. FilterPodFeatures has the reason with
// which a node rejects the pod.
const (
	FilterNodeUnschedulable Filter = "NodeUnschedulable"
	FilterNodeName          Filter = "NodeName"
	FilterTaintToleration   Filter = "TaintToleration"
	FilterNodeAffinity      Filter = "NodeAffinity"
	FilterPodFeatures       Filter = admission.ReasonUnsupportedPodFeature
	FilterVolumeBinding     Filter = "VolumeBinding"
	FilterVolumeZone        Filter = "VolumeZone"
	// FilterVolumeRestrictions rejects a second pod with a claim that only one pod may use.
	FilterVolumeRestrictions Filter = "VolumeRestrictions"
	// FilterVolumeLimits rejects a pod with more volumes of a CSI driver than the driver can attach to the node.
	FilterVolumeLimits      Filter = "NodeVolumeLimits"
	FilterNodePorts         Filter = "NodePorts"
	FilterNodeResourcesFit  Filter = "NodeResourcesFit"
	FilterPodTopologySpread Filter = "PodTopologySpread"
	FilterInterPodAffinity  Filter = "InterPodAffinity"
)

// attempt is the state of one scheduling attempt: the pod with counts over the whole cluster.
type attempt struct {
	*podInfo
	cluster  *Cluster
	with     Related
	siblings labels.Selector // of the pods that it is spread with by default, or nil
	claimed  int             // number of pods that use a claim that only this pod may use
	spread   []spreadConstraint
	affinity affinityCounts
}

// Related is what other objects contribute to the placement of a pod.
type Related struct {
	// Volumes are the volumes that the pod's claims are bound to. MissingVolume reports that one does not exist.
	Volumes       []*corev1.PersistentVolume
	MissingVolume bool
	// Claims are the claims of the pod that are bound when it has a node.
	Claims volumes.PodClaims
	// Drivers is what the CSI drivers of the pod's volumes limit, or nil if it has none.
	Drivers *Drivers
	// SinglePodClaims are the names of the claims that only one pod may use.
	SinglePodClaims []string
	// Siblings selects the pods of the pod's Services and controller. A pod without topology spread constraints is
	// spread over nodes and zones together with them. Nil: it is not.
	Siblings labels.Selector
}

func (c *Cluster) newAttempt(pod *corev1.Pod, with Related) *attempt {
	a := &attempt{podInfo: newPodInfo(pod), cluster: c, with: with, siblings: with.Siblings}
	a.claimed = a.countClaimed()
	a.spread = a.countSpread()
	a.affinity = a.countAffinity()
	return a
}

// clone returns a copy with its own counts, for simulated changes.
func (a *attempt) clone() *attempt {
	out := *a
	out.spread = make([]spreadConstraint, len(a.spread))
	for i, s := range a.spread {
		s.counts = maps.Clone(s.counts)
		out.spread[i] = s
	}
	out.affinity = a.affinity.clone()
	return &out
}

// simulate adds (by 1) or removes (by -1) a pod on a node in the counts.
func (a *attempt) simulate(node *nodeInfo, other *podInfo, by int) {
	for i := range a.spread {
		a.spread[i].count(a, node, other, by)
	}
	a.affinity.count(a, node, other, by)
	if a.sharesClaim(other.pod) {
		a.claimed += by
	}
}

// countClaimed returns the number of pods on nodes that use one of the claims that only this pod may use.
func (a *attempt) countClaimed() (n int) {
	if len(a.with.SinglePodClaims) == 0 {
		return 0
	}
	for uid, other := range a.cluster.pods {
		if uid != a.pod.UID && a.sharesClaim(other.pod) {
			n++
		}
	}
	return n
}

// sharesClaim reports whether another pod uses one of the claims that only this pod may use.
func (a *attempt) sharesClaim(other *corev1.Pod) bool {
	return len(a.with.SinglePodClaims) > 0 && other.Namespace == a.pod.Namespace &&
		slices.ContainsFunc(other.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil &&
				slices.Contains(a.with.SinglePodClaims, v.PersistentVolumeClaim.ClaimName)
		})
}

// filterVolumes checks the volumes that the pod's claims are bound to.
func (a *attempt) filterVolumes(node *corev1.Node) *Rejection {
	if a.with.MissingVolume {
		return &Rejection{[]string{reasonMissingVolume}, FilterVolumeBinding, true}
	}
	for _, v := range a.with.Volumes {
		if !volumes.AllowsNode(v, node) {
			return &Rejection{[]string{reasonVolume}, FilterVolumeBinding, true}
		}
	}
	for _, v := range a.with.Volumes {
		if !volumes.AllowsZone(v, node.Labels) {
			return &Rejection{[]string{reasonVolumeZone}, FilterVolumeZone, true}
		}
	}
	return nil
}

// filterClaims checks that the node can provide the volumes that the pod's claims wait for.
func (a *attempt) filterClaims(node *corev1.Node) *Rejection {
	if len(a.with.Claims.Claims) == 0 {
		return nil
	}
	if _, why := volumes.MatchNode(a.with.Claims, node); why != "" {
		return &Rejection{[]string{string(why)}, FilterVolumeBinding, true}
	}
	return nil
}

// Drivers are the CSI drivers of the volumes of a pod.
type Drivers struct {
	// Volumes are the pod's volumes: the driver by the unique name of the volume.
	Volumes map[string]string
	// Required are the drivers without which a node must not get the pod, sorted.
	Required []string
	// OnNode returns the drivers of a node, or nil if the node has not reported any.
	OnNode func(node string) *storagev1.CSINode
	// Attached returns the volumes that are attached to a node, or will be because of the pods that it has, as Volumes.
	Attached func(node string, pods iter.Seq[*corev1.Pod]) map[string]string
}

// filterVolumeLimits checks that the drivers on the node can attach the pod's volumes too.
func (a *attempt) filterVolumeLimits(node *nodeInfo) *Rejection {
	d := a.with.Drivers
	if d == nil {
		return nil
	}
	limits, installed := map[string]int{}, map[string]bool{}
	if n := d.OnNode(node.Name); n != nil {
		for _, driver := range n.Spec.Drivers {
			installed[driver.Name] = true
			if driver.Allocatable != nil && driver.Allocatable.Count != nil {
				limits[driver.Name] = int(*driver.Allocatable.Count)
			}
		}
	}
	for _, name := range d.Required {
		if !installed[name] {
			return &Rejection{[]string{name + reasonNoDriver}, FilterVolumeLimits, false}
		}
	}
	if len(limits) == 0 {
		return nil
	}
	attached := d.Attached(node.Name, func(yield func(*corev1.Pod) bool) {
		for uid, other := range node.pods {
			if uid != a.pod.UID && !yield(other.pod) {
				return
			}
		}
	})
	count := map[string]int{}
	for _, driver := range attached {
		count[driver]++
	}
	added := map[string]bool{}
	for name, driver := range d.Volumes {
		if _, already := attached[name]; !already {
			count[driver]++
			added[driver] = true
		}
	}
	for driver := range added {
		if limit, limited := limits[driver]; limited && count[driver] > limit {
			return &Rejection{[]string{reasonMaxVolumes}, FilterVolumeLimits, false}
		}
	}
	return nil
}

// object returns what volumes match of a node.
func (n *nodeInfo) object() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
}

// filter returns why the node cannot run the pod in addition to what is used, or nil. It stops at
// the first filter that rejects. Cheap filters run first.
func (a *attempt) filter(node *nodeInfo, used admission.Used) *Rejection {
	pod := a.pod
	switch {
	case node.unschedulable && !admission.Tolerated(corev1.Taint{
		Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule,
	}, pod.Spec.Tolerations):
		return &Rejection{[]string{reasonUnschedulable}, FilterNodeUnschedulable, true}
	case len(admission.NodeName(node.Node, pod)) > 0:
		return &Rejection{[]string{reasonName}, FilterNodeName, true}
	}
	for _, t := range node.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, pod.Spec.Tolerations) {
			return &Rejection{[]string{reasonTaint}, FilterTaintToleration, true}
		}
	}
	if !admission.MatchesSelectors(node.Node, pod) {
		return &Rejection{[]string{reasonAffinity}, FilterNodeAffinity, true}
	}
	if missing := missingFeatures(node, a.features); missing != "" {
		return &Rejection{[]string{reasonPodFeatures + missing}, FilterPodFeatures, true}
	}
	if len(a.with.Volumes) > 0 || a.with.MissingVolume {
		if r := a.filterVolumes(node.object()); r != nil {
			return r
		}
	}
	if len(admission.HostPorts(used, pod)) > 0 {
		return &Rejection{[]string{reasonPorts}, FilterNodePorts, false}
	}
	if r := filterResources(node, used, pod); r != nil {
		return r
	}
	if a.claimed > 0 {
		return &Rejection{[]string{reasonSinglePodClaim}, FilterVolumeRestrictions, false}
	}
	if r := a.filterVolumeLimits(node); r != nil {
		return r
	}
	if r := a.filterClaims(node.object()); r != nil {
		return r
	}
	if r := a.filterTopologySpread(node); r != nil {
		return r
	}
	return a.filterInterPodAffinity(node)
}

// missingFeatures returns the features that the node does not support, joined.
func missingFeatures(node *nodeInfo, features []podspec.Feature) string {
	var out []string
	for _, f := range features {
		if slices.Contains(node.UnsupportedFeatures, f) {
			out = append(out, string(f))
		}
	}
	return strings.Join(out, " ")
}

// filterResources returns all insufficient resources.
func filterResources(node *nodeInfo, used admission.Used, pod *corev1.Pod) *Rejection {
	insufficient := admission.Resources(node.Node, used, pod)
	if len(insufficient) == 0 {
		return nil
	}
	out := &Rejection{Filter: FilterNodeResourcesFit}
	for _, r := range insufficient {
		reason := "Insufficient " + string(r.Resource)
		if r.Resource == corev1.ResourcePods {
			reason = reasonTooManyPods
		}
		out.Reasons = append(out.Reasons, reason)
		out.Unresolvable = out.Unresolvable || r.Requested > r.Capacity
	}
	return out
}

// filterWithNominated filters twice: with the nominated pods of at least the same priority added to
// the node and, because these may be bound elsewhere, without them.
func (a *attempt) filterWithNominated(node *nodeInfo, used admission.Used) *Rejection {
	var nominated []*podInfo
	for uid, other := range node.nominated {
		if uid != a.pod.UID && other.priority >= a.priority {
			nominated = append(nominated, other)
		}
	}
	if len(nominated) > 0 {
		with, usedWith := a.clone(), used
		for _, other := range nominated {
			with.simulate(node, other, 1)
			usedWith.Add(other.pod)
		}
		if r := with.filter(node, usedWith); r != nil {
			return r
		}
	}
	return a.filter(node, used)
}
