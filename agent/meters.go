package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Metrics are told what is measured, from many goroutines; a nil field is not
// told.
type Metrics struct {
	SyncFinished    func(time.Duration)                 // one pass
	ActionDuration  func(stage string, d time.Duration) // one action, or one look (stage prepare)
	ActionFinished  func(*corev1.Pod, plan.Outcome)     // one action, good, bad or called off
	PodStarted      func(PodStart)                      // a pod has come to run
	PodRejected     func(reason string)                 // a pod may not run here
	AuditFinished   func()                              // one comparison with all that the runtime has
	Divergence      func()                              // the audit found what nothing had told
	EventStreamLost func()                              // the stream of the runtime's events was interrupted
	LeakRemoved     func(kind string)                   // something that the runtime had forgotten was removed
}

// PodStart is how a pod has come to run.
type PodStart struct {
	Pod      *corev1.Pod
	Status   corev1.PodStatus
	At       time.Time
	Total    time.Duration // since the pod was first seen
	Overhead time.Duration // of that, without pulls and what changes the runtime
	Pulling  time.Duration // of that, while an image of it was pulled
}

func (m Metrics) passed(d time.Duration) {
	if m.SyncFinished != nil {
		m.SyncFinished(d)
	}
}

func (m Metrics) acted(stage string, d time.Duration) {
	if m.ActionDuration != nil {
		m.ActionDuration(stage, d)
	}
}

func (m Metrics) ended(pod *corev1.Pod, r plan.Outcome) {
	if m.ActionFinished != nil {
		m.ActionFinished(pod, r)
	}
}

func (m Metrics) started(s PodStart) {
	if m.PodStarted != nil {
		m.PodStarted(s)
	}
}

func (m Metrics) rejected(reason string) {
	if m.PodRejected != nil {
		m.PodRejected(reason)
	}
}

func (m Metrics) audited() { tick(m.AuditFinished) }

func (m Metrics) diverged() { tick(m.Divergence) }

func (m Metrics) missed() { tick(m.EventStreamLost) }

func (m Metrics) swept(kind string) {
	if m.LeakRemoved != nil {
		m.LeakRemoved(kind)
	}
}

func tick(f func()) {
	if f != nil {
		f()
	}
}
