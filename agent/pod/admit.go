package pod

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/allocator"
	"berth/agent/plan"
	"berth/agent/source"
)

// Admit is stage 2: it asks the allocator whether the pod may run on this node and
// reserves its resources. The verdict is kept per pod. Only the verdict Wait is
// reconsidered, by the allocator itself.
type Admit struct {
	Allocator interface {
		// Submit requests admission or a resize. The verdicts arrive by Request.Reply.
		Submit(s allocator.Request)
		// ReleaseStartSlot releases the pod's start slot.
		ReleaseStartSlot(uid types.UID)
		// MarkTerminating reports that the pod is terminating.
		MarkTerminating(uid types.UID)
		// Release releases everything that is reserved for the pod.
		Release(uid types.UID)
	}
}

// admission tracks what a worker has requested of the allocator and reported to it, each once.
type admission struct {
	requested           bool
	requestedFor        *corev1.Pod // whose resources the allocator knows
	startSlotReleased   bool
	released            bool
	terminationReported bool
}

// admissionResult is a verdict about the pod at the time of the request.
type admissionResult struct {
	pod *corev1.Pod
	plan.Verdict
	resize bool // requested for a pod that was admitted before
}

// onVerdict returns the callback for verdicts about the pod. It never blocks.
func (w *Worker) onVerdict(pod *corev1.Pod, resize bool) func(plan.Verdict) {
	return func(v plan.Verdict) {
		w.inbox.put(func(m *messages) { m.verdicts = append(m.verdicts, admissionResult{pod, v, resize}) })
	}
}

// claimResources claims the resources of a pod that was admitted before an agent
// restart, without a check. If nothing of it runs, as after a reboot, it waits
// for a start slot.
func (w *Worker) claimResources(d Desired) {
	s := w.state
	running := d.Termination == nil && s.hasReadySandbox()
	if IsTerminal(s.memory.Phase) || s.verdict.State != plan.Admitted && !running {
		return
	}
	w.admission.requested = true
	pod := plan.WithResources(d.Pod, s.memory.Resources.Allocated)
	terminating := d.Termination != nil || s.memory.Termination != nil
	if s.startQueued = !terminating && !s.anyRunning(); s.startQueued {
		s.verdict = plan.Verdict{}
	}
	w.stages.Admit.Allocator.Submit(allocator.Request{
		Pod: pod, Admitted: true, Terminating: terminating, NeedsStartSlot: s.startQueued,
		Reply: w.onVerdict(pod, false), Preempt: w.preempt,
	})
}

// admit requests the admission of the pod once, and a resize once for each change
// of its resources.
func (w *Worker) admit() {
	s := w.state
	if !w.admission.requested && !s.finishedOrTerminating() && s.verdict.State != plan.Rejected {
		w.admission.requested = true
		w.admission.requestedFor = s.desired.Pod
		pod := s.podWithAllocation()
		w.stages.Admit.Allocator.Submit(allocator.Request{
			Pod: pod,
			// A pod that runs here, or was admitted before a restart, is not checked
			// again: a fuller or relabeled node never terminates it.
			Admitted: s.hasReadySandbox() || s.verdict.State == plan.Admitted,
			Reply:    w.onVerdict(pod, false),
			Preempt:  w.preempt,
		})
	}
	if w.admission.requested {
		w.requestResize()
	}
}

// requestResize requests other resources if the desired ones have changed.
func (w *Worker) requestResize() {
	s := w.state
	pod, before := s.desired.Pod, w.admission.requestedFor
	if before == pod || s.finishedOrTerminating() {
		return
	}
	w.admission.requestedFor = pod
	changed := before != nil && !plan.ResourcesOf(before).Equal(plan.ResourcesOf(pod))
	if changed || !plan.ResourcesOf(pod).Equal(plan.ResourcesOf(s.podWithAllocation())) {
		s.resize = plan.ResizeStatus{}
		w.stages.Admit.Allocator.Submit(allocator.Request{Pod: pod, Resize: true, Reply: w.onVerdict(pod, true)})
	}
}

// releaseResources releases the start slot when no more starts follow soon, and
// all resources when the pod has finished or terminates before it was admitted.
// Each is reported once.
func (w *Worker) releaseResources(p plan.Plan) {
	s, a := w.state, &w.admission
	if !a.requested || a.released {
		return
	}
	uid := s.desired.Pod.UID
	admitted := s.verdict.State == plan.Admitted
	switch {
	case IsTerminal(p.Status.Phase), p.Memory.Termination != nil && !admitted:
		a.released = true
		w.stages.Admit.Allocator.Release(uid)
	case admitted && !a.startSlotReleased && !s.isStarting(): // the actions of the plan are in progress by now
		a.startSlotReleased = true
		w.stages.Admit.Allocator.ReleaseStartSlot(uid)
	}
	terminating := s.desired.Termination != nil || p.Memory.Termination != nil
	if admitted && !a.terminationReported && !a.released && terminating {
		a.terminationReported = true
		w.stages.Admit.Allocator.MarkTerminating(uid)
	}
}

// applyVerdict applies a verdict. For an admitted pod it is about a resize.
func (s *state) applyVerdict(r admissionResult) {
	switch admitted := s.verdict.State == plan.Admitted || s.startQueued && r.resize; {
	case r.State == plan.Admitted:
		if !s.startQueued || r.resize { // otherwise a resize may still be deferred
			s.resize = plan.ResizeStatus{}
		}
		s.verdict, s.reserved, s.startQueued = r.Verdict, plan.ResourcesOf(r.pod), false
	case !admitted:
		s.verdict = r.Verdict
	case r.State == plan.Wait:
		s.resize = plan.ResizeStatus{Reason: corev1.PodReasonDeferred, Message: r.Message}
	default:
		s.resize = plan.ResizeStatus{Reason: corev1.PodReasonInfeasible, Message: r.Message}
	}
}

// rejectedBeforeEdit reports whether a verdict rejects the version of the pod before an
// edit of its manifest.
func (s *state) rejectedBeforeEdit(r admissionResult) bool {
	return r.State == plan.Rejected && s.verdict.State == plan.Rejected && !s.deleting() &&
		source.ManifestChanged(r.pod, s.desired.Pod)
}
