package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Metrics receives measurements of pods, from many goroutines. A nil field is not
// called.
type Metrics struct {
	SyncFinished   func(time.Duration)                 // a sync pass
	ActionDuration func(stage string, d time.Duration) // an action, or an observation (stage prepare)
	ActionFinished func(*corev1.Pod, plan.Outcome)     // an action: succeeded, failed or canceled
	PodStarted     func(Start)                         // a pod runs
	PodRejected    func(reason string)                 // a pod was rejected at admission
	Divergence     func()                              // the audit found a change that no event had reported
}

// Start describes the start of a pod.
type Start struct {
	Pod      *corev1.Pod
	Status   corev1.PodStatus
	At       time.Time
	Total    time.Duration // since the pod was first seen
	Overhead time.Duration // of Total, without pulls and calls that change the runtime
	Pulling  time.Duration // of Total, while an image of the pod was pulled
}

func (m Metrics) syncFinished(d time.Duration) {
	if m.SyncFinished != nil {
		m.SyncFinished(d)
	}
}

func (m Metrics) actionDuration(stage string, d time.Duration) {
	if m.ActionDuration != nil {
		m.ActionDuration(stage, d)
	}
}

func (m Metrics) actionFinished(pod *corev1.Pod, r plan.Outcome) {
	if m.ActionFinished != nil {
		m.ActionFinished(pod, r)
	}
}

func (m Metrics) podStarted(s Start) {
	if m.PodStarted != nil {
		m.PodStarted(s)
	}
}

func (m Metrics) podRejected(reason string) {
	if m.PodRejected != nil {
		m.PodRejected(reason)
	}
}

func (m Metrics) divergence() {
	if m.Divergence != nil {
		m.Divergence()
	}
}
