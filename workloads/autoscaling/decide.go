package autoscaling

import (
	"errors"
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

// Input is what a decision depends on.
type Input struct {
	Now        time.Time
	Autoscaler *autoscalingv2.HorizontalPodAutoscaler
	// Scale is the scale of the target, or ScaleError why it could not be read.
	Scale      *autoscalingv1.Scale
	ScaleError error
	// SelectorError is why the selector in Scale cannot be parsed.
	SelectorError error
	// Pods are the pods that the target selects.
	Pods []*corev1.Pod
	// Sharing are the keys of the autoscalers whose targets select some of Pods, this one included.
	Sharing []string
	// Usage is the usage of the pods as metrics.k8s.io has it, or UsageError why it could not be read.
	Usage      []PodUsage
	UsageError error
	// Values are the values of the Pods, Object and External metrics, by their index in the list of metrics.
	Values []Values
	Memory Memory
}

// PodUsage is the resource usage of the containers of a pod.
type PodUsage struct {
	Pod        string
	At         time.Time     // end of the window
	Window     time.Duration // over which the CPU usage is averaged
	Containers map[string]corev1.ResourceList
}

// Memory is what is kept of former decisions about an autoscaler.
type Memory struct {
	Recommendations      []Recommendation
	ScaleUps, ScaleDowns []ScaleEvent
}

// Recommendation is a number of replicas before stabilization.
type Recommendation struct {
	Replicas int32
	At       time.Time
}

// ScaleEvent is a change of the number of replicas. Change is not negative.
type ScaleEvent struct {
	Change int32
	At     time.Time
}

// Decision is what to do.
type Decision struct {
	// Rescale demands to change the number of replicas of the target to Replicas. Reason says why.
	Rescale  bool
	Replicas int32
	Reason   string
	// Status is the status to write. If Rescale is set, it is the one that Rescaled returns.
	Status autoscalingv2.HorizontalPodAutoscalerStatus
	Events []workloads.Event
	Memory Memory
	// Err is why some or all metrics could not be used, or the scale not be read.
	Err error
	// Metrics are the results of the metrics that were evaluated.
	Metrics []MetricResult

	in      Input
	current []autoscalingv2.MetricStatus
}

// MetricResult is what one metric of an autoscaler asks for.
type MetricResult struct {
	Type     autoscalingv2.MetricSourceType
	Replicas int32
	Failed   bool // the metric could not be used
}

// Decide returns what the autoscaler needs next. The autoscaler is defaulted and valid.
func Decide(in Input) Decision {
	d := &Decision{in: in, Memory: in.Memory.clone(), Status: *in.Autoscaler.Status.DeepCopy()}
	if in.ScaleError != nil {
		d.warn("FailedGetScale", in.ScaleError.Error())
		d.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
			"the HPA controller was unable to get the target's current scale: "+in.ScaleError.Error())
		d.Err = in.ScaleError
		return *d
	}
	d.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	current, hpa := in.Scale.Spec.Replicas, in.Autoscaler
	if len(d.Memory.Recommendations) == 0 {
		d.Memory.Recommendations = []Recommendation{{current, in.Now}}
	}
	least := minReplicas(hpa)
	d.Replicas = current
	switch {
	case current == 0 && !d.scalesFromZero(least):
		d.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
	case current > hpa.Spec.MaxReplicas:
		d.Replicas, d.Reason = hpa.Spec.MaxReplicas, "Current number of replicas above Spec.MaxReplicas"
	case current < least:
		d.Replicas, d.Reason = least, "Current number of replicas below Spec.MinReplicas"
	default:
		if !d.fromMetrics(least) {
			d.setStatus(current, hpa.Status.DesiredReplicas)
			d.warn("FailedComputeMetricsReplicas", d.Err.Error())
			return *d
		}
	}
	d.Rescale = d.Replicas != current
	if !d.Rescale {
		d.setStatus(current, current)
	}
	return *d
}

// fromMetrics computes the number of replicas from the metrics. It reports false if they do not allow a decision.
func (d *Decision) fromMetrics(least int32) bool {
	current := d.in.Scale.Spec.Replicas
	proposed, metric, ok := d.evaluate()
	if !ok {
		return false
	}
	switch {
	case proposed > current:
		d.Reason = metric + " above target"
	case proposed < current:
		d.Reason = "All metrics below target"
	}
	d.Replicas = d.normalize(proposed, least)
	return true
}

// scalesFromZero reports whether a target without replicas was scaled to zero by its autoscaler and not by a user.
func (d *Decision) scalesFromZero(least int32) bool {
	scaled := slices.ContainsFunc(d.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == autoscalingv2.ScaledToZero && c.Status == corev1.ConditionTrue
	})
	return scaled && (least != 0 || slices.ContainsFunc(d.in.Autoscaler.Spec.Metrics, independent))
}

// independent reports whether a metric exists without pods.
func independent(m autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
}

// Rescaled returns the decision completed by the result of the change of the scale, whose error is err.
func (d *Decision) Rescaled(err error) Decision {
	out := *d
	out.Status = *d.Status.DeepCopy()
	out.Events = slices.Clone(d.Events)
	out.completed(err)
	return out
}

// completed adds the result of the change of the scale to the decision.
func (d *Decision) completed(err error) {
	current := d.in.Scale.Spec.Replicas
	if err != nil {
		d.Events = append(d.Events, workloads.Event{
			Type: corev1.EventTypeWarning, Reason: "FailedRescale",
			Message: fmt.Sprintf("New size: %d; reason: %s; error: %v", d.Replicas, d.Reason, err),
		})
		d.set(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			fmt.Sprintf("the HPA controller was unable to update the target scale: %v", err))
		d.setStatus(current, d.in.Autoscaler.Status.DesiredReplicas)
		d.Err = errors.Join(d.Err, fmt.Errorf("rescale target: %w", err))
		return
	}
	d.set(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", d.Replicas))
	d.Events = append(d.Events, workloads.Event{
		Type: corev1.EventTypeNormal, Reason: "SuccessfulRescale",
		Message: fmt.Sprintf("New size: %d; reason: %s", d.Replicas, d.Reason),
	})
	d.rememberScale(current)
	if d.Replicas == 0 {
		d.set(autoscalingv2.ScaledToZero, corev1.ConditionTrue, "ScaledToZero",
			"the HPA controller scaled the workload to zero")
	} else {
		d.set(autoscalingv2.ScaledToZero, corev1.ConditionFalse, "NotScaledToZero",
			"the HPA controller did not scale the workload to zero")
	}
	d.setStatus(current, d.Replicas)
	d.Status.LastScaleTime = &metav1.Time{Time: d.in.Now}
}

func (d *Decision) setStatus(current, desired int32) {
	d.Status.CurrentReplicas, d.Status.DesiredReplicas = current, desired
	d.Status.CurrentMetrics = d.current
	d.Status.ObservedGeneration = new(d.in.Autoscaler.Generation)
}

func (d *Decision) warn(reason, message string) {
	d.Events = append(d.Events, workloads.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message})
}

// set sets a condition. The transition time of an unchanged status is kept.
func (d *Decision) set(kind autoscalingv2.HorizontalPodAutoscalerConditionType, value corev1.ConditionStatus,
	reason, message string) {
	i := slices.IndexFunc(d.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
		return c.Type == kind
	})
	if i < 0 {
		i = len(d.Status.Conditions)
		d.Status.Conditions = append(d.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	c := &d.Status.Conditions[i]
	if c.Status != value {
		c.LastTransitionTime = metav1.NewTime(d.in.Now)
	}
	c.Status, c.Reason, c.Message = value, reason, message
}

func minReplicas(hpa *autoscalingv2.HorizontalPodAutoscaler) int32 {
	if hpa.Spec.MinReplicas == nil {
		return 1
	}
	return *hpa.Spec.MinReplicas
}

func (m Memory) clone() Memory {
	return Memory{slices.Clone(m.Recommendations), slices.Clone(m.ScaleUps), slices.Clone(m.ScaleDowns)}
}
