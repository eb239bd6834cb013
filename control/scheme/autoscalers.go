package scheme

import (
	"encoding/json"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Annotations of an autoscaler of autoscaling/v1 that hold what its fields cannot, as JSON.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

// defaultUtilization is the CPU utilization in percent that an autoscaler without metrics aims for.
const defaultUtilization = 80

// addAutoscalers adds the conversions between autoscaling/v1 and autoscaling/v2, whose types are the internal ones.
func addAutoscalers(s *runtime.Scheme) {
	addConversion(s, autoscalerToV1)
	addConversion(s, autoscalerFromV1)
	addConversion(s, func(in *autoscalingv2.HorizontalPodAutoscalerList,
		out *autoscalingv1.HorizontalPodAutoscalerList) {
		out.ListMeta = in.ListMeta
		out.Items = make([]autoscalingv1.HorizontalPodAutoscaler, len(in.Items))
		for i := range in.Items {
			autoscalerToV1(&in.Items[i], &out.Items[i])
		}
	})
	addConversion(s, func(in *autoscalingv1.HorizontalPodAutoscalerList,
		out *autoscalingv2.HorizontalPodAutoscalerList) {
		out.ListMeta = in.ListMeta
		out.Items = make([]autoscalingv2.HorizontalPodAutoscaler, len(in.Items))
		for i := range in.Items {
			autoscalerFromV1(&in.Items[i], &out.Items[i])
		}
	})
}

// isCPUUtilization reports whether the metric is one that autoscaling/v1 has a field for.
func isCPUUtilization(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU && m.Resource.Target.AverageUtilization != nil
}

func autoscalerToV1(in *autoscalingv2.HorizontalPodAutoscaler, out *autoscalingv1.HorizontalPodAutoscaler) {
	in = in.DeepCopy()
	out.ObjectMeta = in.ObjectMeta
	out.Spec = autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
	}
	out.Status = autoscalingv1.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
	}
	annotations := withoutOwnAnnotations(in.Annotations)
	var others []autoscalingv1.MetricSpec
	for i := range in.Spec.Metrics {
		m := &in.Spec.Metrics[i]
		if !isCPUUtilization(m) {
			others = append(others, metricToV1(m))
		} else if out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		}
	}
	annotate(annotations, metricsAnnotation, others, len(others))
	current := make([]autoscalingv1.MetricStatus, len(in.Status.CurrentMetrics))
	for i := range in.Status.CurrentMetrics {
		m := &in.Status.CurrentMetrics[i]
		current[i] = metricStatusToV1(m)
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
			m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
	}
	annotate(annotations, currentMetricsAnnotation, current, len(current))
	conditions := make([]autoscalingv1.HorizontalPodAutoscalerCondition, len(in.Status.Conditions))
	for i, c := range in.Status.Conditions {
		conditions[i] = autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
			ObservedGeneration: c.ObservedGeneration,
		}
	}
	annotate(annotations, conditionsAnnotation, conditions, len(conditions))
	if in.Spec.Behavior != nil {
		annotate(annotations, behaviorAnnotation, asV1Behavior(in.Spec.Behavior), 1)
	}
	if out.Annotations = annotations; len(annotations) == 0 {
		out.Annotations = nil
	}
}

func autoscalerFromV1(in *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) {
	in = in.DeepCopy()
	out.ObjectMeta = in.ObjectMeta
	out.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
	}
	out.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
	}
	var others []autoscalingv1.MetricSpec
	if read(in.Annotations, metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	utilization := in.Spec.TargetCPUUtilizationPercentage
	if utilization == nil && len(out.Spec.Metrics) == 0 {
		utilization = new(int32(defaultUtilization))
	}
	if utilization != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, autoscalingv2.MetricSpec{
			Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{
					Type: autoscalingv2.UtilizationMetricType, AverageUtilization: utilization,
				},
			},
		})
	}
	var behavior v1Behavior
	if read(in.Annotations, behaviorAnnotation, &behavior) {
		out.Spec.Behavior = behavior.behavior()
	}
	var current []autoscalingv1.MetricStatus
	if read(in.Annotations, currentMetricsAnnotation, &current) {
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, metricStatusFromV1(&current[i]))
		}
	} else if percent := in.Status.CurrentCPUUtilizationPercentage; percent != nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: percent},
			},
		}}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if read(in.Annotations, conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
				Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
				LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
				ObservedGeneration: c.ObservedGeneration,
			})
		}
	}
	if out.Annotations = withoutOwnAnnotations(in.Annotations); len(out.Annotations) == 0 {
		out.Annotations = nil
	}
}

// v1Behavior is the behavior in an annotation. Its fields have no JSON names of their own in Kubernetes, so that they
// are written with capitals. Reading ignores case.
type v1Behavior struct {
	ScaleUp, ScaleDown *v1Rules
}

type v1Rules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []v1Policy
	Tolerance                  *json.RawMessage
}

type v1Policy struct {
	Type          autoscalingv2.HPAScalingPolicyType
	Value         int32
	PeriodSeconds int32
}

func asV1Behavior(in *autoscalingv2.HorizontalPodAutoscalerBehavior) v1Behavior {
	return v1Behavior{asV1Rules(in.ScaleUp), asV1Rules(in.ScaleDown)}
}

func asV1Rules(in *autoscalingv2.HPAScalingRules) *v1Rules {
	if in == nil {
		return nil
	}
	out := &v1Rules{StabilizationWindowSeconds: in.StabilizationWindowSeconds, SelectPolicy: in.SelectPolicy}
	for _, p := range in.Policies {
		out.Policies = append(out.Policies, v1Policy(p))
	}
	if in.Tolerance != nil {
		if raw, err := json.Marshal(in.Tolerance); err == nil {
			out.Tolerance = (*json.RawMessage)(&raw)
		}
	}
	return out
}

// behavior returns nil if nothing is set.
func (b v1Behavior) behavior() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	if b.ScaleUp == nil && b.ScaleDown == nil {
		return nil
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: b.ScaleUp.rules(), ScaleDown: b.ScaleDown.rules()}
}

func (r *v1Rules) rules() *autoscalingv2.HPAScalingRules {
	if r == nil {
		return nil
	}
	out := &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy,
	}
	for _, p := range r.Policies {
		out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy(p))
	}
	if r.Tolerance != nil {
		_ = json.Unmarshal(*r.Tolerance, &out.Tolerance) // an invalid one is dropped, as all of an invalid annotation
	}
	return out
}

// withoutOwnAnnotations returns a copy without the annotations that a conversion writes. It is never nil.
func withoutOwnAnnotations(in map[string]string) map[string]string {
	out := make(map[string]string, len(in))
	maps.Copy(out, in)
	for _, key := range []string{metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation,
		behaviorAnnotation} {
		delete(out, key)
	}
	return out
}

// annotate sets an annotation to a value of n elements. Without elements there is none.
func annotate(annotations map[string]string, key string, value any, n int) {
	if n == 0 {
		return
	}
	if text, err := json.Marshal(value); err == nil {
		annotations[key] = string(text)
	}
}

// read decodes an annotation. It reports false if there is none or if it is invalid: such a one is ignored.
func read(annotations map[string]string, key string, into any) bool {
	text, found := annotations[key]
	return found && json.Unmarshal([]byte(text), into) == nil
}
