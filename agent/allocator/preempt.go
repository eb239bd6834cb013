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
func (s *state) preempt(r *Request) {
	node := s.node
	node.Standalone = s.standalone
	if !podspec.IsCritical(r.Pod, s.standalone) {
		return
	}
	var in []*corev1.Pod
	for uid, pod := range s.admitted {
		if s.preemptFuncs[uid] != nil && !s.terminating[uid] {
			in = append(in, pod)
		}
	}
	victims := admission.PodsToPreempt(node, s.usedLater(r.Pod), r.Pod, in)
	if len(victims) == 0 {
		return
	}
	names := make([]string, len(victims))
	for i, v := range victims {
		names[i] = v.Namespace + "/" + v.Name
		s.terminating[v.UID] = true
		s.queue = slices.DeleteFunc(s.queue, func(q Request) bool { return q.Pod.UID == v.UID })
		s.preemptFuncs[v.UID](plan.Termination{
			Reason: ReasonPreempting, Message: preemptionMessage, EventDetail: " " + r.Pod.Namespace + "/" + r.Pod.Name,
			Grace: podspec.GracePeriod(v), NodeCaused: true,
		})
	}
	if r.victims != "" { // an earlier preemption was not sufficient
		names = append([]string{r.victims}, names...)
	}
	r.victims = strings.Join(names, ", ")
}

// rejections returns why a pod does not fit now or would take resources reserved for a pod that
// precedes it.
func (s *state) rejections(pod *corev1.Pod) []admission.Rejection {
	if now := admission.Check(s.node, s.used, pod); len(now) > 0 {
		return now
	}
	if !s.reservedByPreemption(pod) {
		return nil
	}
	return admission.Check(s.node, s.usedLater(pod), pod)
}

// usedLater returns the usage after the termination of all terminating pods and the admission of
// the preemptors that precede the pod.
func (s *state) usedLater(pod *corev1.Pod) admission.Used {
	used := s.used
	for uid := range s.terminating {
		used.Remove(s.admitted[uid])
	}
	for _, r := range s.waiting {
		if s.precedes(r, pod) {
			used.Add(r.Pod)
		}
	}
	return used
}

// reservedByPreemption reports whether resources are reserved for a preemptor that precedes the
// pod.
func (s *state) reservedByPreemption(pod *corev1.Pod) bool {
	for _, r := range s.waiting {
		if s.precedes(r, pod) {
			return true
		}
	}
	return false
}

// precedes reports whether s is a waiting preemptor that comes before the pod.
func (s *state) precedes(r Request, pod *corev1.Pod) bool {
	if r.victims == "" || r.Pod.UID == pod.UID {
		return false
	}
	two := []Request{{Pod: pod}, r}
	s.sort(two)
	return two[0].Pod.UID == r.Pod.UID
}
