package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/plan"
)

// resize decides on the new resources of a pod. For a pod that is not admitted they replace the
// requested ones.
func (f *state) resize(s Request) {
	uid := s.Pod.UID
	was, in := f.admitted[uid]
	if !in {
		if before, waits := f.waiting[uid]; waits {
			s.Resize, s.lastReply, s.victims = false, before.lastReply, before.victims
			f.handle(s)
		}
		return
	}
	turn := slices.IndexFunc(f.queue, func(q Request) bool { return q.Pod.UID == uid })
	if no := forbiddenResize(f.node, was, s.Pod); turn < 0 && no != nil {
		delete(f.waiting, uid) // the earlier request is obsolete
		s.reply(*no)
		return
	}
	used := f.used
	used.Remove(was)
	if s.deferredSince = f.waiting[uid].deferredSince; s.deferredSince.IsZero() {
		s.deferredSince = time.Now()
	}
	delete(f.waiting, uid)
	refusals := admission.Resources(f.node, used, s.Pod)
	if len(refusals) == 0 && f.reservedByPreemption(s.Pod) && !f.terminating[uid] {
		kept := f.usedLater(s.Pod)
		kept.Remove(was)
		refusals = admission.Resources(f.node, kept, s.Pod)
	}
	if len(refusals) == 0 {
		used.Add(s.Pod)
		f.used, f.admitted[uid] = used, s.Pod
		if turn >= 0 { // still queued: the verdict for the start slot is for this version of the pod
			f.queue[turn].Pod, f.queue[turn].Reply = s.Pod, s.Reply
			return
		}
		s.reply(plan.Verdict{State: plan.Admitted})
		return
	}
	v := resizeVerdict(refusals)
	s.reply(v)
	if v.State == plan.Wait {
		f.waiting[uid] = s
	}
}

// forbiddenResize returns the verdict on a resize that is impossible regardless of free resources,
// or nil.
func forbiddenResize(node admission.Node, was, pod *corev1.Pod) *plan.Verdict {
	why := cmp.Or(plan.ResizeForbidden(was, pod), admission.SwapPreventsResize(node, was, pod))
	if why == "" {
		return nil
	}
	return &plan.Verdict{State: plan.Rejected, Message: why}
}

// resizeVerdict returns the verdict on a resize that does not fit now or never fits.
func resizeVerdict(refusals []admission.Rejection) plan.Verdict {
	v := verdictOf(refusals)
	if i := slices.IndexFunc(refusals, func(r admission.Rejection) bool { return !r.Recoverable }); i >= 0 {
		r := refusals[i] // regardless of other pods
		v.Message = fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", r.Resource, r.Requested,
			r.Capacity)
	}
	return v
}
