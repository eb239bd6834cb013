package pod

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
	"berth/agent/status"
)

// ObserveFailed is the reason of a pod whose state cannot be read.
const ObserveFailed = "ObserveFailed"

// newSnapshot returns the state of the pod after a sync pass.
func newSnapshot(s *state, p plan.Plan, at time.Time) *status.Snapshot {
	snap := &status.Snapshot{
		At: at, Pod: s.desired.Pod, Termination: p.Memory.Termination, Verdict: s.verdict, Status: p.Status,
		Observed: s.observed,
		Refs:     s.refs, Reasons: s.reported, Memory: p.Memory, Syncs: s.syncs, Wake: p.Wake,
	}
	snap.InProgress, snap.Failures = s.activity()
	return snap
}

// activity returns the actions in progress, oldest first, and the failures.
func (s *state) activity() (inProgress []status.ActionInProgress, failures map[plan.ActionKey]plan.Failure) {
	for key, a := range s.inProgress {
		inProgress = append(inProgress, status.ActionInProgress{Action: a, Since: s.startedAt[key]})
	}
	slices.SortFunc(inProgress, func(x, y status.ActionInProgress) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Action.Key().String(), y.Action.Key().String()))
	})
	if len(s.failures) > 0 {
		failures = maps.Clone(s.failures)
	}
	return inProgress, failures
}

// UnsyncedSnapshot returns the state of a pod without a sync pass, with the reason. Its
// status is the last known one.
func UnsyncedSnapshot(pod *corev1.Pod, v plan.Verdict, m plan.Memory, why status.ReportedReason) *status.Snapshot {
	s := &status.Snapshot{Pod: pod, Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: pod.Status.QOSClass}}
	s.Verdict, s.Termination, s.Status.Conditions = v, m.Termination, m.Conditions
	for _, ip := range m.IPs {
		s.Status.PodIPs = append(s.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(m.IPs) > 0 {
		s.Status.PodIP = m.IPs[0]
	}
	if !m.StartTime.IsZero() {
		s.Status.StartTime = &metav1.Time{Time: m.StartTime}
	}
	if m.Phase != "" {
		s.Status.Phase, s.Status.Reason, s.Status.Message = m.Phase, m.Reason, m.Message
	}
	if !IsTerminal(s.Status.Phase) {
		s.Status.Reason, s.Status.Message = why.Code, why.Message
		s.Reasons = []status.ReportedReason{why}
	}
	return s
}

func (w *Worker) publish(s *status.Snapshot) {
	w.published = s
	w.agent.Publish(s)
}
