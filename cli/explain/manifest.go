package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
	"berth/podspec"
)

// PlanContext is what a manifest meets on this node.
type PlanContext struct {
	Limits     plan.Limits
	Find       func(namespace, name string) (*agent.Snapshot, bool)                                // the pod of that name
	Objects    func(pod *corev1.Pod, more map[source.ObjectKey]plan.Object) plan.Objects           // that a pod names
	LocalImage func(pod *corev1.Pod, image string, objects plan.Objects) (img plan.Image, ok bool) // for the pod to use
	Rejection  func(pod, gone *corev1.Pod) string                                                  // what stage admit would say to a new pod when another is gone, which may be nil; empty: yes
	Resize     func(was, pod *corev1.Pod) plan.Verdict                                             // what it would say to a pod that is in and wants other resources
}

// PlanManifest says what a judged manifest would mean for this node, without doing it.
func PlanManifest(wishes *source.DesiredState, here PlanContext, now time.Time) (out nodeapi.PlanResult) {
	for _, w := range wishes.Warnings {
		out.Warnings = append(out.Warnings, Warning(w))
	}
	for _, pod := range wishes.Pods {
		out.Pods = append(out.Pods, here.plan(pod, wishes.Objects, now))
	}
	return out
}

func (h PlanContext) plan(pod *corev1.Pod, more map[source.ObjectKey]plan.Object, now time.Time) nodeapi.PodPlan {
	objects := h.Objects(pod, more)
	s := PodState{Pod: pod, Limits: h.Limits, Refs: agent.ObjectVersions(objects)}
	snap, found := h.Find(pod.Namespace, pod.Name)
	if !found {
		snap = &agent.Snapshot{}
	}
	ended := agent.HasFinished(snap.Memory, snap.Verdict) || over(snap.Status.Phase)
	holds := snap.Verdict.State == plan.OK && !ended // has room
	var ending []step
	refused := ""
	change := ChangeOf(snap.Pod, pod, ended)
	switch change {
	case nodeapi.Create:
		refused = h.Rejection(pod, nil)
	case nodeapi.Replace:
		var gone *corev1.Pod
		if holds {
			gone = has(snap)
		}
		refused = h.Rejection(pod, gone)
		ending = h.ending(snap, now)
	case nodeapi.Unchanged, nodeapi.Update, nodeapi.Resize:
		s.Observed, s.Status, s.Memory = snap.Seen, snap.Status, snap.Memory
		switch {
		case !resized(snap.Pod, pod):
		case holds:
			s.Reserved, s.Resize = h.resize(has(snap), pod)
		default:
			refused = h.Rejection(pod, nil)
		}
	}
	s.Observed.Images = map[string]plan.Image{} // of the manifest, which may name others
	for _, name := range append(images(pod), volumeImages(pod)...) {
		if img, ok := h.LocalImage(pod, name, objects); ok {
			s.Observed.Images[name] = img
		}
	}
	return planAfter(ending, s, change, refused, now)
}

// has is a pod that is here with the resources that the room holds for it.
func has(s *agent.Snapshot) *corev1.Pod {
	return plan.WithResources(s.Pod, s.Memory.Sizes.Allocated)
}

// resize asks for a pod's new resources: what the room would hold, and why not what
// is wished.
func (h PlanContext) resize(was, pod *corev1.Pod) (plan.Resources, plan.Resize) {
	switch v := h.Resize(was, pod); v.State {
	case plan.OK:
		return plan.ResourcesOf(pod), plan.Resize{}
	case plan.Wait:
		return plan.ResourcesOf(was), plan.Resize{Reason: corev1.PodReasonDeferred, Message: v.Message}
	default:
		return plan.ResourcesOf(was), plan.Resize{Reason: corev1.PodReasonInfeasible, Message: v.Message}
	}
}

// ending is what the end of a pod that is here takes.
func (h PlanContext) ending(snap *agent.Snapshot, now time.Time) []step {
	s := FromSnapshot(snap, h.Limits, func(plan.Action) string { return "" })
	s.Termination = &plan.End{Reason: "Deleted", Grace: podspec.GracePeriod(snap.Pod), At: now, Forget: true}
	steps, _ := imagine(s, now)
	return steps
}
