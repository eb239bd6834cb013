package allocator

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/plan"
	"berth/podspec"
)

// Preempted is why a pod ends that has to go for a critical one, and what it is
// told, in upstream's words.
const (
	Preempted        = "Preempting"
	preemptedMessage = "Preempted in order to admit critical pod"
)

// preempt has others go for a critical pod that lacks resources, unless those that
// are ending already make room for it. What it needs is kept for it until it is in.
func (f *floor) preempt(s *Seat) {
	node := f.node
	node.Standalone = f.alone
	if !podspec.IsCritical(s.Pod, f.alone) {
		return
	}
	var in []*corev1.Pod
	for uid, pod := range f.admitted {
		if f.tell[uid] != nil && !f.ending[uid] {
			in = append(in, pod)
		}
	}
	victims := admission.PodsToPreempt(node, f.later(s.Pod), s.Pod, in)
	if len(victims) == 0 {
		return
	}
	names := make([]string, len(victims))
	for i, v := range victims {
		names[i] = v.Namespace + "/" + v.Name
		f.ending[v.UID] = true
		f.queue = slices.DeleteFunc(f.queue, func(q Seat) bool { return q.Pod.UID == v.UID })
		f.tell[v.UID](plan.End{
			Reason: Preempted, Message: preemptedMessage, Detail: " " + s.Pod.Namespace + "/" + s.Pod.Name, Grace: podspec.GracePeriod(v), Node: true,
		})
	}
	if s.preempts != "" { // more than at first
		names = append([]string{s.preempts}, names...)
	}
	s.preempts = strings.Join(names, ", ")
}

// refusals are why a pod does not fit now, or would take what is kept for one that
// comes before it.
func (f *floor) refusals(pod *corev1.Pod) []admission.Rejection {
	if now := admission.Check(f.node, f.used, pod); len(now) > 0 {
		return now
	}
	if !f.claimed(pod) {
		return nil
	}
	return admission.Check(f.node, f.later(pod), pod)
}

// later is what is used when all who are ending have gone and those have come, for
// whom they go, that come before the pod.
func (f *floor) later(pod *corev1.Pod) admission.Used {
	used := f.used
	for uid := range f.ending {
		used.Remove(f.admitted[uid])
	}
	for _, s := range f.waiting {
		if f.claims(s, pod) {
			used.Add(s.Pod)
		}
	}
	return used
}

// claimed reports whether room is kept that the pod may not have.
func (f *floor) claimed(pod *corev1.Pod) bool {
	for _, s := range f.waiting {
		if f.claims(s, pod) {
			return true
		}
	}
	return false
}

// claims reports whether others go for who waits there, and the pod comes after it.
func (f *floor) claims(s Seat, pod *corev1.Pod) bool {
	if s.preempts == "" || s.Pod.UID == pod.UID {
		return false
	}
	two := []Seat{{Pod: pod}, s}
	f.sort(two)
	return two[0].Pod.UID == s.Pod.UID
}
