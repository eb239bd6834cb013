package allocator

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
	"berth/agent/plan"
	"berth/podspec"
)

// ReasonPreempting and preemptionMessage are upstream's reason and message for the termination of a
// preempted pod.
const (
	ReasonPreempting  = "Preempting"
	preemptionMessage = "Preempted in order to admit critical pod"
)

// preempt terminates other pods for a critical pod that lacks resources, unless pods that terminate
// already release enough. The resources remain reserved until the critical pod is admitted.
func (f *state) preempt(s *Request) {
	node := f.node
	node.Standalone = f.standalone
	if !podspec.IsCritical(s.Pod, f.standalone) {
		return
	}
	var in []*corev1.Pod
	for uid, pod := range f.admitted {
		if f.preemptFuncs[uid] != nil && !f.terminating[uid] {
			in = append(in, pod)
		}
	}
	victims := admission.PodsToPreempt(node, f.usedLater(s.Pod), s.Pod, in)
	if len(victims) == 0 {
		return
	}
	names := make([]string, len(victims))
	for i, v := range victims {
		names[i] = v.Namespace + "/" + v.Name
		f.terminating[v.UID] = true
		f.queue = slices.DeleteFunc(f.queue, func(q Request) bool { return q.Pod.UID == v.UID })
		f.preemptFuncs[v.UID](plan.Termination{
			Reason: ReasonPreempting, Message: preemptionMessage, EventDetail: " " + s.Pod.Namespace + "/" + s.Pod.Name,
			Grace: podspec.GracePeriod(v), NodeCaused: true,
		})
	}
	if s.victims != "" { // an earlier preemption was not sufficient
		names = append([]string{s.victims}, names...)
	}
	s.victims = strings.Join(names, ", ")
}

// rejections returns why a pod does not fit now or would take resources reserved for a pod that
// precedes it.
func (f *state) rejections(pod *corev1.Pod) []admission.Rejection {
	if now := admission.Check(f.node, f.used, pod); len(now) > 0 {
		return now
	}
	if !f.reservedByPreemption(pod) {
		return nil
	}
	return admission.Check(f.node, f.usedLater(pod), pod)
}

// usedLater returns the usage after the termination of all terminating pods and the admission of
// the preemptors that precede the pod.
func (f *state) usedLater(pod *corev1.Pod) admission.Used {
	used := f.used
	for uid := range f.terminating {
		used.Remove(f.admitted[uid])
	}
	for _, s := range f.waiting {
		if f.precedes(s, pod) {
			used.Add(s.Pod)
		}
	}
	return used
}

// reservedByPreemption reports whether resources are reserved for a preemptor that precedes the
// pod.
func (f *state) reservedByPreemption(pod *corev1.Pod) bool {
	for _, s := range f.waiting {
		if f.precedes(s, pod) {
			return true
		}
	}
	return false
}

// precedes reports whether s is a waiting preemptor that comes before the pod.
func (f *state) precedes(s Request, pod *corev1.Pod) bool {
	if s.victims == "" || s.Pod.UID == pod.UID {
		return false
	}
	two := []Request{{Pod: pod}, s}
	f.sort(two)
	return two[0].Pod.UID == s.Pod.UID
}
