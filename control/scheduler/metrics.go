package scheduler

import (
	"strconv"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"berth/control/metrics/subsystem"
	"berth/control/scheduler/placement"
)

// component is the prefix of the metrics. Their names, labels and buckets are those of kube-scheduler. The label
// profile is the name of the scheduler.
const component subsystem.Name = "scheduler"

// Results of attempts, the label result.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// maxAttemptsLabel is the most attempts that have a label of their own.
const maxAttemptsLabel = 15

var (
	scheduleAttempts = component.CounterVec("schedule_attempts_total",
		"Number of attempts to schedule a pod, by result.",
		metrics.STABLE, "result", "profile")
	attemptDuration = component.HistogramVec("scheduling_attempt_duration_seconds",
		"Duration of the attempts to schedule a pod, with the binding.",
		metrics.STABLE, metrics.ExponentialBuckets(0.001, 2, 15), "result", "profile")
	algorithmDuration = component.Histogram("scheduling_algorithm_duration_seconds",
		"Duration of the selection of a node.",
		metrics.ALPHA, metrics.ExponentialBuckets(0.001, 2, 15))
	sliDuration = component.HistogramVec("pod_scheduling_sli_duration_seconds",
		"Time from the addition of a pod to the queue, without its scheduling gates, to its binding.",
		metrics.BETA, metrics.ExponentialBuckets(0.01, 2, 20), "attempts")
	podAttempts = component.Histogram("pod_scheduling_attempts",
		"Number of attempts after which a pod was bound.",
		metrics.STABLE, metrics.ExponentialBuckets(1, 2, 5))
	preemptionVictims = component.Histogram("preemption_victims",
		"Number of victims of a preemption.",
		metrics.STABLE, metrics.ExponentialBuckets(1, 2, 7))
	preemptionAttempts = component.Counter("preemption_attempts_total",
		"Number of attempts to preempt pods.",
		metrics.STABLE)
	pendingPods = component.GaugeVec("pending_pods",
		"Number of pods without a node that no attempt is in progress for, by queue.",
		metrics.STABLE, "queue")
	queueIncoming = component.CounterVec("queue_incoming_pods_total",
		"Number of pods that were added to a queue, by the event that caused it.",
		metrics.STABLE, "queue", "event")
	unschedulablePods = component.GaugeVec("unschedulable_pods",
		"Number of pods without a node whose last attempt a plugin rejected.",
		metrics.ALPHA, "plugin", "profile")
	cacheSize = component.GaugeVec("cache_size",
		"Number of nodes, pods on nodes, and pods whose binding is not confirmed.",
		metrics.ALPHA, "type")
)

// registerMetrics registers the metrics. It is idempotent.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(scheduleAttempts, attemptDuration, algorithmDuration, sliDuration, podAttempts,
		preemptionVictims, preemptionAttempts, pendingPods, queueIncoming, unschedulablePods, cacheSize)
})

// queueLabels are the values of the label queue by state.
var queueLabels = map[queueState]string{
	active: "active", backoff: "backoff", unschedulable: "unschedulable", gated: "gated",
}

// countIncoming counts a pod that was added to a queue. Gated pods are in the queue of unschedulable ones, as upstream.
func countIncoming(state queueState, event queueEvent) {
	if state == gated {
		state = unschedulable
	}
	queueIncoming.WithLabelValues(queueLabels[state], string(event)).Inc()
}

// attempt is one attempt to schedule a pod.
type attempt struct {
	start    time.Time
	queued   time.Time // when the pod became active for the first time
	attempts int       // of the pod, this one included
}

// observeAttempt counts an attempt that has ended.
func (s *Scheduler) observeAttempt(a attempt, result string) {
	scheduleAttempts.WithLabelValues(result, s.Name).Inc()
	attemptDuration.WithLabelValues(result, s.Name).Observe(time.Since(a.start).Seconds())
	if result == resultScheduled {
		podAttempts.Observe(float64(a.attempts))
		sliDuration.WithLabelValues(attemptsLabel(a.attempts)).Observe(time.Since(a.queued).Seconds())
	}
}

// attemptsLabel returns the label for a number of attempts.
func attemptsLabel(n int) string {
	if n >= maxAttemptsLabel {
		return strconv.Itoa(maxAttemptsLabel) + "+"
	}
	return strconv.Itoa(n)
}

// observePreemption counts an attempt to preempt pods.
func observePreemption(p placement.Preemption) {
	preemptionAttempts.Inc()
	if p.Node != "" {
		preemptionVictims.Observe(float64(len(p.Victims)))
	}
}

// observeState sets the gauges.
func (s *Scheduler) observeState() {
	for state, label := range queueLabels {
		pendingPods.WithLabelValues(label).Set(float64(s.queue.count[state]))
	}
	for filter, n := range s.queue.rejections {
		unschedulablePods.WithLabelValues(string(filter), s.Name).Set(float64(n))
		if n == 0 {
			delete(s.queue.rejections, filter)
		}
	}
	nodes, pods := s.cluster.Size()
	cacheSize.WithLabelValues("nodes").Set(float64(nodes))
	cacheSize.WithLabelValues("pods").Set(float64(pods))
	cacheSize.WithLabelValues("assumed_pods").Set(float64(s.queue.count[assumed]))
}

// resetState clears the gauges when the scheduler ends.
func resetState() {
	pendingPods.Reset()
	unschedulablePods.Reset()
	cacheSize.Reset()
}
