package room

import (
	"slices"
	"time"

	"berth/admission"
	"berth/agent/plan"
)

// resize judges what a pod wants now instead. One that is not in yet is judged
// by it when its turn comes.
func (f *floor) resize(s Seat) {
	uid := s.Pod.UID
	was, in := f.admitted[uid]
	if !in {
		if before, waits := f.waiting[uid]; waits {
			s.Resize, s.told, s.preempts = false, before.told, before.preempts
			f.enter(s)
		}
		return
	}
	turn := slices.IndexFunc(f.queue, func(q Seat) bool { return q.Pod.UID == uid })
	if why := plan.Forbidden(was, s.Pod); turn < 0 && why != "" {
		delete(f.waiting, uid) // what it wanted before it wants no more
		s.tell(plan.Verdict{State: plan.Rejected, Message: why})
		return
	}
	used := f.used
	used.Remove(was)
	if s.since = f.waiting[uid].since; s.since.IsZero() {
		s.since = time.Now()
	}
	delete(f.waiting, uid)
	refusals := admission.Resources(f.node, used, s.Pod)
	if len(refusals) == 0 && f.claimed(s.Pod) && !f.ending[uid] {
		kept := f.later(s.Pod)
		kept.Remove(was)
		refusals = admission.Resources(f.node, kept, s.Pod)
	}
	if len(refusals) == 0 {
		used.Add(s.Pod)
		f.used, f.admitted[uid] = used, s.Pod
		if turn >= 0 { // its turn to start has not come: the answer then is for this pod
			f.queue[turn].Pod, f.queue[turn].Reply = s.Pod, s.Reply
			return
		}
		s.tell(plan.Verdict{State: plan.OK})
		return
	}
	v := verdictOf(refusals)
	s.tell(v)
	if v.State == plan.Wait {
		f.waiting[uid] = s
	}
}
