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
func (s *state) resize(r Request) {
	uid := r.Pod.UID
	was, in := s.admitted[uid]
	if !in {
		if before, waits := s.waiting[uid]; waits {
			r.Resize, r.lastReply, r.victims = false, before.lastReply, before.victims
			s.handle(r)
		}
		return
	}
	queued := slices.IndexFunc(s.queue, func(q Request) bool { return q.Pod.UID == uid })
	if verdict := forbiddenResize(s.node, was, r.Pod); queued < 0 && verdict != nil {
		delete(s.waiting, uid) // the earlier request is obsolete
		r.reply(*verdict)
		return
	}
	used := s.used
	used.Remove(was)
	if r.deferredSince = s.waiting[uid].deferredSince; r.deferredSince.IsZero() {
		r.deferredSince = time.Now()
	}
	delete(s.waiting, uid)
	rejections := admission.Resources(s.node, used, r.Pod)
	if len(rejections) == 0 && s.reservedByPreemption(r.Pod) && !s.terminating[uid] {
		reserved := s.usedLater(r.Pod)
		reserved.Remove(was)
		rejections = admission.Resources(s.node, reserved, r.Pod)
	}
	if len(rejections) == 0 {
		used.Add(r.Pod)
		s.used, s.admitted[uid] = used, r.Pod
		if queued >= 0 { // still queued: the verdict for the start slot is for this version of the pod
			s.queue[queued].Pod, s.queue[queued].Reply = r.Pod, r.Reply
			return
		}
		r.reply(plan.Verdict{State: plan.Admitted})
		return
	}
	v := resizeVerdict(rejections)
	r.reply(v)
	if v.State == plan.Wait {
		s.waiting[uid] = r
	}
}

// forbiddenResize returns the verdict on a resize that is impossible regardless of free resources,
// or nil.
func forbiddenResize(node admission.Node, was, pod *corev1.Pod) *plan.Verdict {
	reason := cmp.Or(plan.ResizeForbidden(was, pod), admission.SwapPreventsResize(node, was, pod))
	if reason == "" {
		return nil
	}
	return &plan.Verdict{State: plan.Rejected, Message: reason}
}

// resizeVerdict returns the verdict on a resize that does not fit now or never fits.
func resizeVerdict(rejections []admission.Rejection) plan.Verdict {
	v := verdictOf(rejections)
	if i := slices.IndexFunc(rejections, func(r admission.Rejection) bool { return !r.Recoverable }); i >= 0 {
		r := rejections[i] // regardless of other pods
		v.Message = fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", r.Resource,
			r.Requested,
			r.Capacity)
	}
	return v
}
