package workloadhistory

import (
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// podChange is a change of a pod.
type podChange struct {
	pod     *corev1.Pod // before, if it is removed
	created bool
	deleted bool // from now on: the pod was neither deleted nor terminated before
	ready   bool // before the change
	known   int64
}

// checkPod checks the invariants of the controller of a pod.
func (h *History) checkPod(before, after *corev1.Pod) {
	c := podChange{pod: after, created: before == nil}
	if before != nil {
		c.deleted = active(before) && (after == nil || after.DeletionTimestamp != nil)
		c.ready = ready(before)
		c.known = h.pods[before.UID].known
	}
	if after == nil {
		c.pod = before
		delete(h.pods, before.UID)
	}
	if c.created {
		h.Pods++
		h.pods[after.UID] = &podRecord{}
	}
	ref := metav1.GetControllerOfNoCopy(c.pod)
	if ref == nil {
		return
	}
	switch owner := h.uids[ref.UID].(type) {
	case *appsv1.ReplicaSet:
		h.checkReplicaSetPod(owner, c)
	case *appsv1.StatefulSet:
		h.checkStatefulSetPod(owner, c)
	case *appsv1.DaemonSet:
		h.checkDaemonSetPod(owner, c)
	case *batchv1.Job:
		h.checkJobPod(owner, c)
	}
}

func (h *History) checkReplicaSetPod(set *appsv1.ReplicaSet, c podChange) {
	record := h.sets[set.UID]
	if n := count(h.podsOf(set.UID), active); c.created && n > int(record.most) {
		h.violated("D3", "ReplicaSet %s has %d active pods, it had at most %d replicas", set.Name, n, record.most)
	}
	d := h.deploymentOf(set)
	if d == nil {
		return
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		for _, other := range childrenOf[*appsv1.ReplicaSet](h, d.UID) {
			left := count(h.podsOf(other.UID), func(p *corev1.Pod) bool { return !terminated(p) })
			if c.created && other.UID != set.UID && left > 0 {
				h.violated("D4", "pod %s was created beside %d pods of ReplicaSet %s", c.pod.Name, left, other.Name)
			}
		}
		return
	}
	fewest := replicas(d.Spec.Replicas) - amount(d.Spec.Strategy.RollingUpdate.MaxUnavailable, d.Spec.Replicas, false)
	if n := count(h.deploymentPods(d), ready); c.deleted && c.ready && c.known > 0 && c.known < record.decreased &&
		n < fewest {
		h.violated("D2", "Deployment %s has %d available pods after the deletion of %s, want %d", d.Name, n, c.pod.Name,
			fewest)
	}
}

func (h *History) checkStatefulSetPod(set *appsv1.StatefulSet, c podChange) {
	if set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		return
	}
	ordinals := map[int]*corev1.Pod{}
	for _, p := range h.podsOf(set.UID) {
		ordinals[ordinal(p)] = p
	}
	unavailable := 0
	for i := range replicas(set.Spec.Replicas) {
		p := ordinals[i]
		if p != nil && ready(p) {
			continue
		}
		unavailable++
		if c.created && i < ordinal(c.pod) {
			h.violated("S1", "pod %s was created before pod %d was ready", c.pod.Name, i)
		}
	}
	if c.deleted && c.ready && unavailable > 1 {
		h.violated("S2", "StatefulSet %s has %d unavailable pods after the deletion of %s", set.Name, unavailable,
			c.pod.Name)
	}
}

func (h *History) checkDaemonSetPod(set *appsv1.DaemonSet, c podChange) {
	surge := 0
	allowed := 1
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		surge, allowed = amount(r.MaxSurge, nil, true), amount(r.MaxUnavailable, nil, true)
	}
	onNode, ofRevision, available, node := 0, 0, map[string]bool{}, nodeOf(c.pod)
	for _, p := range h.podsOf(set.UID) {
		if ready(p) {
			available[nodeOf(p)] = true
		}
		if !active(p) || nodeOf(p) != node {
			continue
		}
		onNode++
		if p.Labels[appsv1.ControllerRevisionHashLabelKey] == c.pod.Labels[appsv1.ControllerRevisionHashLabelKey] {
			ofRevision++
		}
	}
	if c.created && (ofRevision > 1 || onNode > 1+min(1, surge)) {
		h.violated("E1", "node %s has %d active pods of DaemonSet %s, %d of the revision of %s", node, onNode, set.Name,
			ofRevision, c.pod.Name)
	}
	missing := int(set.Status.DesiredNumberScheduled) - len(available)
	if c.deleted && c.ready && c.known > 0 && !available[node] && missing > allowed {
		h.violated("E2", "%d nodes have no available pod of DaemonSet %s after the deletion of %s", missing, set.Name,
			c.pod.Name)
	}
}

func (h *History) deploymentOf(set *appsv1.ReplicaSet) *appsv1.Deployment {
	ref := metav1.GetControllerOfNoCopy(set)
	if ref == nil {
		return nil
	}
	return as[*appsv1.Deployment](h.uids[ref.UID])
}

// deploymentPods returns the pods of all ReplicaSets of a Deployment.
func (h *History) deploymentPods(d *appsv1.Deployment) (out []*corev1.Pod) {
	for _, set := range childrenOf[*appsv1.ReplicaSet](h, d.UID) {
		out = append(out, h.podsOf(set.UID)...)
	}
	return out
}

func replicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// amount returns a value of maxSurge or maxUnavailable. Percentages are of total, which is nil if the value is none.
func amount(value *intstr.IntOrString, total *int32, roundUp bool) int {
	if value == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, replicas(total), roundUp)
	if err != nil {
		return 0 // validation refuses it
	}
	return n
}

// ordinal returns the number at the end of the name of a StatefulSet's pod.
func ordinal(p *corev1.Pod) int {
	n, err := strconv.Atoi(p.Name[strings.LastIndexByte(p.Name, '-')+1:])
	if err != nil {
		return -1
	}
	return n
}

// nodeOf returns the node that a DaemonSet's pod is made for.
func nodeOf(p *corev1.Pod) string {
	if p.Spec.NodeName != "" || p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil ||
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return p.Spec.NodeName
	}
	for _, term := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// uidOf returns the UID of the controller of an object, or "".
func uidOf(o metav1.Object) types.UID {
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		return ref.UID
	}
	return ""
}
