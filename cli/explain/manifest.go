package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/localworkloads"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/nodeapi"
	"berth/podspec"
)

// PlanContext is the state of the node against which a manifest is planned.
type PlanContext struct {
	Limits plan.Limits
	// the pod with that name
	Find func(namespace, name string) (*status.Snapshot, bool)
	// the objects that a pod refers to
	Objects func(pod *corev1.Pod, manifest map[source.ObjectKey]plan.Object) plan.Objects
	// an image that the pod can use without a pull
	LocalImage func(pod *corev1.Pod, image string, objects plan.Objects) (img plan.Image, ok bool)
	// the reason for which admission would reject a new pod after the deletion of another one, which
	// can be nil; empty: admitted
	Rejection func(pod, replaced *corev1.Pod) string
	// the result of admission for a resize of an admitted pod
	Resize func(old, pod *corev1.Pod) plan.Verdict
	// what workloads of files would do; nil: the node runs none
	Workloads func(files []source.Workload, now time.Time) []localworkloads.Preview
}

// PlanManifest returns what applying a validated manifest would do, without doing it.
func PlanManifest(desired *source.DesiredState, node PlanContext, now time.Time) (out nodeapi.PlanResult) {
	for _, w := range desired.Warnings {
		out.Warnings = append(out.Warnings, Warning(w))
	}
	for _, pod := range desired.Pods {
		out.Pods = append(out.Pods, node.plan(pod, desired.Objects, now))
	}
	if len(desired.Workloads) > 0 && node.Workloads != nil {
		for _, p := range node.Workloads(desired.Workloads, now) {
			out.Workloads = append(out.Workloads, node.planWorkload(p, desired.Objects, now))
		}
	}
	return out
}

func (h PlanContext) plan(pod *corev1.Pod, manifest map[source.ObjectKey]plan.Object, now time.Time) nodeapi.PodPlan {
	objects := h.Objects(pod, manifest)
	s := PodState{Pod: pod, Limits: h.Limits, Refs: objects.Versions()}
	snap, found := h.Find(pod.Namespace, pod.Name)
	if !found {
		snap = &status.Snapshot{}
	}
	finishedPod := plan.HasFinished(snap.Memory, snap.Verdict) || finished(snap.Status.Phase)
	holds := snap.Verdict.State == plan.Admitted && !finishedPod // holds resources
	var termination []step
	rejection := ""
	change := ChangeOf(snap.Pod, pod, finishedPod)
	switch change {
	case nodeapi.Create:
		rejection = h.Rejection(pod, nil)
	case nodeapi.Replace:
		var replaced *corev1.Pod
		if holds {
			replaced = allocated(snap)
		}
		rejection = h.Rejection(pod, replaced)
		termination = h.termination(snap, now)
	case nodeapi.Unchanged, nodeapi.Update, nodeapi.Resize:
		s.Observed, s.Status, s.Memory = snap.Observed, snap.Status, snap.Memory
		switch {
		case !resized(snap.Pod, pod):
		case holds:
			s.Reserved, s.Resize = h.resize(allocated(snap), pod)
		default:
			rejection = h.Rejection(pod, nil)
		}
	}
	s.Observed.Images = h.images(pod, objects) // of the manifest, which can name other images
	return planAfter(termination, s, change, rejection, now)
}

// planNew is plan for a pod that does not exist.
func (h PlanContext) planNew(pod *corev1.Pod, manifest map[source.ObjectKey]plan.Object, now time.Time,
) nodeapi.PodPlan {
	objects := h.Objects(pod, manifest)
	s := PodState{Pod: pod, Limits: h.Limits, Refs: objects.Versions()}
	s.Observed.Images = h.images(pod, objects)
	return planAfter(nil, s, nodeapi.Create, "", now)
}

// images returns the images of a pod that need no pull.
func (h PlanContext) images(pod *corev1.Pod, objects plan.Objects) map[string]plan.Image {
	out := map[string]plan.Image{}
	for _, name := range append(images(pod), volumeImages(pod)...) {
		if img, ok := h.LocalImage(pod, name, objects); ok {
			out[name] = img
		}
	}
	return out
}

// allocated is an existing pod with the resources that the allocator has reserved for it.
func allocated(s *status.Snapshot) *corev1.Pod {
	return plan.WithResources(s.Pod, s.Memory.Resources.Allocated)
}

// resize returns the resources that the allocator would reserve for a pod, and why they differ from
// the requested ones.
func (h PlanContext) resize(old, pod *corev1.Pod) (plan.Resources, plan.ResizeStatus) {
	switch v := h.Resize(old, pod); v.State {
	case plan.Admitted:
		return plan.ResourcesOf(pod), plan.ResizeStatus{}
	case plan.Wait:
		return plan.ResourcesOf(old), plan.ResizeStatus{Reason: corev1.PodReasonDeferred, Message: v.Message}
	default:
		return plan.ResourcesOf(old), plan.ResizeStatus{Reason: corev1.PodReasonInfeasible, Message: v.Message}
	}
}

// termination returns the steps that terminate an existing pod.
func (h PlanContext) termination(snap *status.Snapshot, now time.Time) []step {
	s := FromSnapshot(snap, h.Limits, func(plan.Action) string { return "" })
	s.Termination = &plan.Termination{Reason: "Deleted", Grace: podspec.GracePeriod(snap.Pod), RequestedAt: now,
		RemovePod: true}
	steps, _ := simulate(s, now)
	return steps
}
