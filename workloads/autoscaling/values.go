package autoscaling

import (
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Values are the values of a Pods, Object or External metric in milli-units.
type Values struct {
	// ByPod are the values of a Pods metric by name of the pod.
	ByPod map[string]int64
	// Total is the value of an Object metric, or the sum of the values of an External one.
	Total int64
	// Err is why there are no values.
	Err error
}

// values returns the values of a metric.
func (d *Decision) values(metric int) Values {
	if metric >= len(d.in.Values) {
		return Values{Err: errors.New("no values were requested")}
	}
	return d.in.Values[metric]
}

// evaluatePods returns the proposal of a Pods metric and sets its status.
func (d *Decision) evaluatePods(metric int, spec *autoscalingv2.PodsMetricSource, status *autoscalingv2.MetricStatus) (
	p proposal, f *failure) {
	fail := func(err error) (proposal, *failure) {
		return proposal{}, &failure{"FailedGetPodsMetric", err, "failed to get pods metric value: "}
	}
	values := d.values(metric)
	switch {
	case values.Err != nil:
		return fail(fmt.Errorf("unable to get metric %s: %w", spec.Metric.Name, values.Err))
	case spec.Target.AverageValue == nil:
		return fail(errors.New("invalid pods metric source: no average value target was set"))
	}
	c := calculation{
		in: d.in, custom: values.ByPod, tolerances: tolerancesOf(d.in.Autoscaler),
		target: spec.Target.AverageValue.MilliValue(),
	}
	result, err := c.run()
	if err != nil {
		return fail(err)
	}
	status.Type = autoscalingv2.PodsMetricSourceType
	status.Pods = &autoscalingv2.PodsMetricStatus{
		Metric: *spec.Metric.DeepCopy(), Current: autoscalingv2.MetricValueStatus{AverageValue: milli(result.average)},
	}
	return proposal{replicas: result.replicas, name: "pods metric " + spec.Metric.Name}, nil
}

// evaluateObject returns the proposal of an Object metric and sets its status.
func (d *Decision) evaluateObject(metric int, spec *autoscalingv2.ObjectMetricSource,
	status *autoscalingv2.MetricStatus) (p proposal, f *failure) {
	const prefix = "failed to get object metric value: "
	of, values, target := spec.DescribedObject, d.values(metric), spec.Target
	p.name = fmt.Sprintf("%s metric %s", of.Kind, spec.Metric.Name)
	average := ""
	if target.Type == autoscalingv2.AverageValueMetricType {
		target.Value = nil
		average = fmt.Sprintf("failed to get %s object metric: ", spec.Metric.Name)
		p.name = fmt.Sprintf("external metric %s(%+v)", spec.Metric.Name, spec.Metric.Selector) // as upstream
	} else {
		target.AverageValue = nil
	}
	current, replicas, err := d.fromTotal(target, values.Total)
	p.replicas = replicas
	if values.Err != nil {
		err = fmt.Errorf("unable to get metric %s: %w on %s %s/%s", spec.Metric.Name, values.Err, of.Kind,
			d.in.Autoscaler.Namespace, of.Name)
	}
	if err != nil {
		return proposal{}, &failure{"FailedGetObjectMetric", err, prefix + average}
	}
	status.Type = autoscalingv2.ObjectMetricSourceType
	status.Object = &autoscalingv2.ObjectMetricStatus{
		DescribedObject: of, Metric: *spec.Metric.DeepCopy(), Current: current,
	}
	return p, nil
}

// evaluateExternal returns the proposal of an External metric and sets its status.
func (d *Decision) evaluateExternal(metric int, spec *autoscalingv2.ExternalMetricSource,
	status *autoscalingv2.MetricStatus) (p proposal, f *failure) {
	name, values := spec.Metric.Name, d.values(metric)
	current, replicas, err := d.fromTotal(spec.Target, values.Total)
	prefix := fmt.Sprintf("failed to get %s external metric value: failed to get external metric %s: ", name, name)
	if spec.Target.AverageValue != nil {
		prefix = fmt.Sprintf("failed to get %s external metric value: failed to get %s external metric: ", name, name)
	}
	if values.Err != nil {
		err = fmt.Errorf("unable to get external metric %s/%s/%+v: %w", d.in.Autoscaler.Namespace, name,
			spec.Metric.Selector, values.Err)
	}
	if err != nil {
		return proposal{}, &failure{"FailedGetExternalMetric", err, prefix}
	}
	status.Type = autoscalingv2.ExternalMetricSourceType
	status.External = &autoscalingv2.ExternalMetricStatus{Metric: *spec.Metric.DeepCopy(), Current: current}
	return proposal{replicas: replicas, name: fmt.Sprintf("external metric %s(%+v)", name, spec.Metric.Selector)}, nil
}

// fromTotal returns the status and the replicas for a value that all pods share. A Value target is met by the ready
// pods, an AverageValue target by the pods that the scale counts.
func (d *Decision) fromTotal(target autoscalingv2.MetricTarget, total int64) (
	current autoscalingv2.MetricValueStatus, replicas int32, err error) {
	within := tolerancesOf(d.in.Autoscaler).include
	replicas = d.in.Scale.Spec.Replicas
	switch {
	case target.AverageValue != nil:
		each, pods := float64(target.AverageValue.MilliValue()), d.in.Scale.Status.Replicas
		replicas = pods
		if pods == 0 || !within(float64(total)/(each*float64(pods))) {
			replicas = ceil(float64(total) / each)
		}
		average := int64(math.Ceil(float64(total) / float64(max(pods, 1))))
		return autoscalingv2.MetricValueStatus{AverageValue: milli(average)}, replicas, nil
	case target.Value == nil:
		return current, 0, errors.New("invalid metric source: neither a value target nor an average value target was" +
			" set")
	}
	ratio := float64(total) / float64(target.Value.MilliValue())
	current.Value = milli(total)
	switch {
	case replicas == 0:
		replicas = ceil(ratio)
	case !within(ratio):
		if len(d.in.Pods) == 0 {
			return current, 0, errors.New("unable to calculate ready pods: no pods returned by selector while" +
				" calculating replica count")
		}
		replicas = ceil(ratio * float64(d.readyPods()))
	}
	return current, replicas, nil
}

// readyPods counts the pods that run and are ready.
func (d *Decision) readyPods() (n int) {
	for _, pod := range d.in.Pods {
		for i := range pod.Status.Conditions {
			c := &pod.Status.Conditions[i]
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pod.Status.Phase == corev1.PodRunning {
				n++
			}
		}
	}
	return n
}

func milli(value int64) *resource.Quantity {
	return resource.NewMilliQuantity(value, resource.DecimalSI)
}
