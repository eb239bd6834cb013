package agent

import (
	corev1 "k8s.io/api/core/v1"

	"berth/agent/allocator"
	"berth/agent/plan"
)

// admissionResult is what the room says of a pod as it was when it was asked for.
type admissionResult struct {
	pod *corev1.Pod
	plan.Verdict
	resize bool // asked for a pod that was let in before
}

// onVerdict takes the room's answers.
func (w *worker) onVerdict(pod *corev1.Pod, resize bool) func(plan.Verdict) {
	return func(v plan.Verdict) {
		w.inbox.put(func(p *messages) { p.verdicts = append(p.verdicts, admissionResult{pod, v, resize}) })
	}
}

// applyVerdict takes in an answer. For a pod that is in, it is about other resources.
func (b *state) applyVerdict(a admissionResult) {
	switch in := b.verdict.State == plan.OK || b.startQueued && a.resize; {
	case a.State == plan.OK:
		if !b.startQueued || a.resize { // else what it wants instead may be deferred
			b.resize = plan.Resize{}
		}
		b.verdict, b.reserved, b.startQueued = a.Verdict, plan.ResourcesOf(a.pod), false
	case !in:
		b.verdict = a.Verdict
	case a.State == plan.Wait:
		b.resize = plan.Resize{Reason: corev1.PodReasonDeferred, Message: a.Message}
	default:
		b.resize = plan.Resize{Reason: corev1.PodReasonInfeasible, Message: a.Message}
	}
}

// podWithAllocation is the wish with what the pod has of it in resources.
func (b *state) podWithAllocation() *corev1.Pod {
	return plan.WithResources(b.desired.Pod, b.memory.Sizes.Allocated)
}

// requestResize asks the room once for each change of what a pod wants.
func (w *worker) requestResize() {
	b := w.state
	pod := b.desired.Pod
	if w.requestedFor == pod || b.finishedOrTerminating() {
		return
	}
	was := w.requestedFor
	w.requestedFor = pod
	if was != nil && !plan.ResourcesOf(was).Equal(plan.ResourcesOf(pod)) || !plan.ResourcesOf(pod).Equal(plan.ResourcesOf(b.podWithAllocation())) {
		b.resize = plan.Resize{}
		w.room.Ask(allocator.Seat{Pod: pod, Resize: true, Reply: w.onVerdict(pod, true)})
	}
}
