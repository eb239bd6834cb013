package agent

import (
	corev1 "k8s.io/api/core/v1"

	"berth/agent/allocator"
	"berth/agent/plan"
)

// answer is what the room says of a pod as it was when it was asked for.
type answer struct {
	pod *corev1.Pod
	plan.Verdict
	resize bool // asked for a pod that was let in before
}

// answered takes the room's answers.
func (w *worker) answered(pod *corev1.Pod, resize bool) func(plan.Verdict) {
	return func(v plan.Verdict) {
		w.mail.put(func(p *post) { p.answers = append(p.answers, answer{pod, v, resize}) })
	}
}

// answered takes in an answer. For a pod that is in, it is about other resources.
func (b *book) answered(a answer) {
	switch in := b.verdict.State == plan.OK || b.queued && a.resize; {
	case a.State == plan.OK:
		if !b.queued || a.resize { // else what it wants instead may be deferred
			b.resize = plan.Resize{}
		}
		b.verdict, b.reserved, b.queued = a.Verdict, plan.ResourcesOf(a.pod), false
	case !in:
		b.verdict = a.Verdict
	case a.State == plan.Wait:
		b.resize = plan.Resize{Reason: corev1.PodReasonDeferred, Message: a.Message}
	default:
		b.resize = plan.Resize{Reason: corev1.PodReasonInfeasible, Message: a.Message}
	}
}

// pod is the wish with what the pod has of it in resources.
func (b *book) pod() *corev1.Pod {
	return plan.WithResources(b.wish.Pod, b.memory.Sizes.Allocated)
}

// askAgain asks the room once for each change of what a pod wants.
func (w *worker) askAgain() {
	b := w.book
	pod := b.wish.Pod
	if w.wants == pod || b.over() {
		return
	}
	was := w.wants
	w.wants = pod
	if was != nil && !plan.ResourcesOf(was).Equal(plan.ResourcesOf(pod)) || !plan.ResourcesOf(pod).Equal(plan.ResourcesOf(b.pod())) {
		b.resize = plan.Resize{}
		w.room.Ask(allocator.Seat{Pod: pod, Resize: true, Reply: w.answered(pod, true)})
	}
}
