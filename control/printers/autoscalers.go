package printers

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// shownMetrics is how many metrics of an autoscaler are shown.
const shownMetrics = 2

const unknownValue = "<unknown>"

func autoscalerRow(h *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	least := "<unset>"
	if h.Spec.MinReplicas != nil {
		least = strconv.Itoa(int(*h.Spec.MinReplicas))
	}
	return []any{
		h.Name,
		h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name,
		formatMetrics(h.Spec.Metrics, h.Status.CurrentMetrics),
		least,
		strconv.Itoa(int(h.Spec.MaxReplicas)),
		strconv.Itoa(int(h.Status.CurrentReplicas)),
		age(h.CreationTimestamp, now),
	}
}

// formatMetrics returns the current and target values of the first metrics, and how many more there are.
func formatMetrics(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	var shown []string
	for i := range specs[:min(len(specs), shownMetrics)] {
		status := &autoscalingv2.MetricStatus{}
		if i < len(statuses) {
			status = &statuses[i]
		}
		shown = append(shown, formatMetric(&specs[i], status))
	}
	out := strings.Join(shown, ", ")
	if more := len(specs) - shownMetrics; more > 0 {
		return fmt.Sprintf("%s + %d more...", out, more)
	}
	return out
}

func formatMetric(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	none := autoscalingv2.MetricValueStatus{}
	switch {
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		if status.Resource != nil {
			none = status.Resource.Current
		}
		return spec.Resource.Name.String() + ": " + formatResource(spec.Resource.Target, none)
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		if status.ContainerResource != nil {
			none = status.ContainerResource.Current
		}
		return spec.ContainerResource.Name.String() + ": " + formatResource(spec.ContainerResource.Target, none)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		if status.Pods != nil {
			none = status.Pods.Current
		}
		return quantityOrUnknown(none.AverageValue) + "/" + quantityOrUnknown(spec.Pods.Target.AverageValue)
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		if status.Object != nil {
			none = status.Object.Current
		}
		return formatValue(spec.Object.Target, none)
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		if status.External != nil {
			none = status.External.Current
		}
		return formatValue(spec.External.Target, none)
	}
	return "<unknown type>"
}

func formatResource(target autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantityOrUnknown(current.AverageValue) + "/" + target.AverageValue.String()
	}
	is, want := unknownValue, "<auto>"
	if current.AverageUtilization != nil {
		is = fmt.Sprintf("%d%%", *current.AverageUtilization)
	}
	if target.AverageUtilization != nil {
		want = fmt.Sprintf("%d%%", *target.AverageUtilization)
	}
	return is + "/" + want
}

func formatValue(target autoscalingv2.MetricTarget, current autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return quantityOrUnknown(current.AverageValue) + "/" + target.AverageValue.String() + " (avg)"
	}
	return quantityOrUnknown(current.Value) + "/" + quantityOrUnknown(target.Value)
}

func quantityOrUnknown(q *resource.Quantity) string {
	if q == nil {
		return unknownValue
	}
	return q.String()
}
