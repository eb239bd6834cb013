package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Meters are told what is measured, from many goroutines; a nil field is not
// told.
type Meters struct {
	Pass       func(time.Duration)                 // one pass
	Action     func(stage string, d time.Duration) // one action, or one look (stage prepare)
	Ended      func(*corev1.Pod, plan.Outcome)     // one action, good, bad or called off
	Started    func(Start)                         // a pod has come to run
	Rejected   func(reason string)                 // a pod may not run here
	Audit      func()                              // one comparison with all that the runtime has
	Divergence func()                              // the audit found what nothing had told
	Missed     func()                              // the stream of the runtime's events was interrupted
	Swept      func(kind string)                   // something that the runtime had forgotten was removed
}

// Start is how a pod has come to run.
type Start struct {
	Pod      *corev1.Pod
	Status   corev1.PodStatus
	At       time.Time
	Total    time.Duration // since the pod was first seen
	Overhead time.Duration // of that, without pulls and what changes the runtime
	Pulling  time.Duration // of that, while an image of it was pulled
}

func (m Meters) passed(d time.Duration) {
	if m.Pass != nil {
		m.Pass(d)
	}
}

func (m Meters) acted(stage string, d time.Duration) {
	if m.Action != nil {
		m.Action(stage, d)
	}
}

func (m Meters) ended(pod *corev1.Pod, r plan.Outcome) {
	if m.Ended != nil {
		m.Ended(pod, r)
	}
}

func (m Meters) started(s Start) {
	if m.Started != nil {
		m.Started(s)
	}
}

func (m Meters) rejected(reason string) {
	if m.Rejected != nil {
		m.Rejected(reason)
	}
}

func (m Meters) audited() { tick(m.Audit) }

func (m Meters) diverged() { tick(m.Divergence) }

func (m Meters) missed() { tick(m.Missed) }

func (m Meters) swept(kind string) {
	if m.Swept != nil {
		m.Swept(kind)
	}
}

func tick(f func()) {
	if f != nil {
		f()
	}
}
