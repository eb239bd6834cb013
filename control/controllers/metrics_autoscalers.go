package controllers

import (
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"

	"berth/control/metrics/subsystem"
	"berth/workloads/autoscaling"
)

const autoscalerSubsystem subsystem.Name = "horizontal_pod_autoscaler_controller"

var (
	autoscalerReconciliations = autoscalerSubsystem.CounterVec("reconciliations_total",
		"Number of reconciliations of HorizontalPodAutoscalers.",
		metrics.BETA, "action", "error")
	autoscalerReconciliationDuration = autoscalerSubsystem.HistogramVec("reconciliation_duration_seconds",
		"Duration of the reconciliations of HorizontalPodAutoscalers.",
		metrics.BETA, metrics.ExponentialBuckets(0.001, 2, 15), "action", "error")
	autoscalerComputations = autoscalerSubsystem.CounterVec("metric_computation_total",
		"Number of metrics of HorizontalPodAutoscalers that were evaluated.",
		metrics.BETA, "action", "error", "metric_type")
	autoscalerComputationDuration = autoscalerSubsystem.HistogramVec("metric_computation_duration_seconds",
		"Duration of the evaluation of a metric. All metrics of an autoscaler share one request for the "+
			"usage of its pods, which is included.",
		metrics.BETA, metrics.ExponentialBuckets(0.001, 2, 15), "action", "error", "metric_type")
	autoscalerCount = autoscalerSubsystem.Gauge("num_horizontal_pod_autoscalers",
		"Number of HorizontalPodAutoscalers.",
		metrics.ALPHA)
	autoscalerDesired = autoscalerSubsystem.GaugeVec("desired_replicas",
		"Number of replicas that a HorizontalPodAutoscaler asks for.",
		metrics.ALPHA, "namespace", "hpa_name")

	autoscalerMetrics = []metrics.Registerable{autoscalerReconciliations, autoscalerReconciliationDuration,
		autoscalerComputations, autoscalerComputationDuration, autoscalerCount, autoscalerDesired}
)

// scaleAction returns the label for a change of the number of replicas.
func scaleAction(from, to int32) string {
	switch {
	case to > from:
		return "scale_up"
	case to < from:
		return "scale_down"
	}
	return "none"
}

// newAutoscalerGauges returns the gauge that measure sets.
func newAutoscalerGauges(objects cache.SharedIndexInformer) *objectGauges[*autoscalingv2.HorizontalPodAutoscaler] {
	return &objectGauges[*autoscalingv2.HorizontalPodAutoscaler]{
		informer: objects, gauges: []*metrics.GaugeVec{autoscalerDesired},
		labels: func(hpa *autoscalingv2.HorizontalPodAutoscaler) []string {
			return []string{hpa.Namespace, hpa.Name}
		},
	}
}

// measure counts a sync. evaluation is how long it took to read the usage and decide, and total the sync.
func (a *autoscalers) measure(hpa *autoscalingv2.HorizontalPodAutoscaler, in *autoscaling.Input,
	d *autoscaling.Decision, specError bool, err error, evaluation, total time.Duration) {
	for _, m := range d.Metrics {
		action, failed := scaleAction(hpa.Status.CurrentReplicas, m.Replicas), "none"
		if m.Failed {
			action, failed = "none", "internal"
		}
		autoscalerComputations.WithLabelValues(action, failed, string(m.Type)).Inc()
		autoscalerComputationDuration.WithLabelValues(action, failed, string(m.Type)).Observe(evaluation.Seconds())
	}
	action, failed := "none", "none"
	if d.Rescale && in.Scale != nil && d.Status.DesiredReplicas == d.Replicas {
		action = scaleAction(in.Scale.Spec.Replicas, d.Replicas)
	}
	if d.Err != nil || err != nil {
		failed = "internal"
	}
	if specError {
		failed = "spec"
	}
	autoscalerReconciliations.WithLabelValues(action, failed).Inc()
	autoscalerReconciliationDuration.WithLabelValues(action, failed).Observe(total.Seconds())
	if d.Err == nil {
		a.gauges.set(hpa, float64(d.Status.DesiredReplicas))
	}
}
