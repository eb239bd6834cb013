package statefulset

import (
	"bytes"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

// checker checks S1 to S6 of the package documentation. It does not use the code of the package.
type checker struct {
	in         Input
	violations []string
}

func (c *checker) violated(invariant, format string, args ...any) {
	c.violations = append(c.violations, invariant+": "+fmt.Sprintf(format, args...))
}

// bounds returns the first desired ordinal and the number of desired ordinals.
func (c *checker) bounds() (first, n int) {
	if o := c.in.Set.Spec.Ordinals; o != nil {
		first = int(o.Start)
	}
	return first, int(*c.in.Set.Spec.Replicas)
}

func (c *checker) ordinals(keep func(*corev1.Pod) bool) map[int]bool {
	out := map[int]bool{}
	for n := range ordinalsOf(c.in.Pods, keep) {
		out[n] = true
	}
	return out
}

func (c *checker) isAvailable(p *corev1.Pod) bool {
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
			at := cond.LastTransitionTime.Unix() + int64(c.in.Set.Spec.MinReadySeconds)
			return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && c.in.Now.Unix() >= at
		}
	}
	return false
}

func (c *checker) decided(in Input, out workloads.Decision[appsv1.StatefulSetStatus]) {
	c.in = in
	claims := map[string]bool{}
	for _, claim := range in.Claims {
		claims[claim.Name] = claim.DeletionTimestamp == nil
	}
	stopped := 0 // available pods that the decision deletes although their ordinals are desired
	for _, w := range out.Writes {
		switch o := w.Object.(type) {
		case *corev1.Pod:
			switch w.Verb {
			case workloads.Create:
				c.podCreated(o, claims)
			case workloads.Delete:
				stopped += c.podDeleted(o)
			case workloads.Update, workloads.Patch:
			}
		case *corev1.PersistentVolumeClaim:
			c.claimWritten(w, o)
			claims[o.Name] = true
		case *appsv1.ControllerRevision:
			c.revisionWritten(w, o)
		}
	}
	if stopped > 0 {
		c.checkBudget(stopped)
	}
}

func (c *checker) podCreated(p *corev1.Pod, claims map[string]bool) {
	first, n := c.bounds()
	for created := range ordinalsOf([]*corev1.Pod{p}, func(*corev1.Pod) bool { return true }) {
		if created < first || created >= first+n {
			c.violated("S1", "pod %s is created with %d replicas from %d", p.Name, n, first)
		}
		available := c.ordinals(c.isAvailable)
		for lower := first; lower < created; lower++ {
			if c.in.Set.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement && !available[lower] {
				c.violated("S2", "pod %s is created while ordinal %d is not available", p.Name, lower)
			}
		}
		current := c.in.Set.Status.CurrentRevision
		if created-first < c.partition() && c.exists(current) && p.Labels["controller-revision-hash"] != current {
			c.violated("S4", "pod %s is created with revision %s", p.Name, p.Labels["controller-revision-hash"])
		}
	}
	for _, template := range c.in.Set.Spec.VolumeClaimTemplates {
		if name := template.Name + "-" + p.Name; !claims[name] {
			c.violated("S5", "pod %s is created without claim %s", p.Name, name)
		}
	}
}

func (c *checker) exists(revision string) bool {
	for _, r := range c.in.Revisions {
		if r.Name == revision && metav1.IsControlledBy(r, c.in.Set) {
			return true
		}
	}
	return false
}

func (c *checker) partition() int {
	u := c.in.Set.Spec.UpdateStrategy
	if u.Type != appsv1.RollingUpdateStatefulSetStrategyType || u.RollingUpdate == nil {
		return 0
	}
	return int(*u.RollingUpdate.Partition)
}

// podDeleted returns 1 if the pod is available and its ordinal is desired.
func (c *checker) podDeleted(p *corev1.Pod) int {
	first, n := c.bounds()
	if workloads.Terminated(p) {
		return 0
	}
	for deleted := range ordinalsOf([]*corev1.Pod{p}, func(*corev1.Pod) bool { return true }) {
		switch {
		case deleted >= first && deleted < first+n:
			if deleted-first < c.partition() {
				c.violated("S4", "pod %s below the partition is deleted", p.Name)
			}
			if c.isAvailable(p) {
				return 1
			}
		case c.in.Set.Spec.PodManagementPolicy == appsv1.OrderedReadyPodManagement:
			for other := range c.ordinals(func(o *corev1.Pod) bool { return metav1.IsControlledBy(o, c.in.Set) }) {
				if other > deleted && (other < first || other >= first+n) {
					c.violated("S2", "pod %s is deleted before ordinal %d", p.Name, other)
				}
			}
		}
	}
	return 0
}

func (c *checker) checkBudget(stopped int) {
	first, n := c.bounds()
	budget := 1
	if r := c.in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		scaled, _ := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, n, false)
		budget = max(1, scaled)
	}
	available := c.ordinals(c.isAvailable)
	unavailable := stopped
	for o := first; o < first+n; o++ {
		if !available[o] {
			unavailable++
		}
	}
	if unavailable > budget {
		c.violated("S3", "%d of %d pods stopped, %d would be unavailable, %d may be", stopped, n, unavailable, budget)
	}
}

func (c *checker) claimWritten(w workloads.Write, claim *corev1.PersistentVolumeClaim) {
	if w.Verb == workloads.Delete {
		c.violated("S5", "claim %s is deleted", claim.Name)
	}
	p := c.in.Set.Spec.PersistentVolumeClaimRetentionPolicy
	for _, ref := range claim.OwnerReferences {
		if ref.Kind == "StatefulSet" && (p == nil || p.WhenDeleted != remove) ||
			ref.Kind == "Pod" && (p == nil || p.WhenScaled != remove) {
			c.violated("S5", "claim %s is owned by a %s", claim.Name, ref.Kind)
		}
	}
}

func (c *checker) revisionWritten(w workloads.Write, r *appsv1.ControllerRevision) {
	if w.Verb != workloads.Delete {
		return
	}
	named := ordinalsOf(c.in.Pods, func(p *corev1.Pod) bool {
		return p.Labels["controller-revision-hash"] == r.Name && metav1.IsControlledBy(p, c.in.Set)
	})
	if len(named) > 0 || r.Name == c.in.Set.Status.CurrentRevision {
		c.violated("S6", "revision %s of pods %v is deleted", r.Name, named)
	}
}

// changed checks what really happened on the server.
func (c *checker) changed(s *workloadstest.Server, old, current workloads.Object) {
	r, ok := current.(*appsv1.ControllerRevision)
	if !ok || old != nil {
		return
	}
	for _, other := range workloadstest.List[*appsv1.ControllerRevision](s) {
		if other.Name != r.Name && bytes.Equal(other.Data.Raw, r.Data.Raw) {
			c.violated("S6", "revisions %s and %s have the same data", other.Name, r.Name)
		}
	}
}
