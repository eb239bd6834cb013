package autoscaling

import (
	"errors"
	"fmt"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// proposal is the number of replicas that a metric asks for.
type proposal struct {
	replicas int32
	name     string // in events and conditions
	current  autoscalingv2.MetricValueStatus
}

// failure is why a metric could not be used.
type failure struct {
	reason string // of the condition and the event
	err    error
	prefix string
}

// evaluate returns the highest proposal. It reports false if all metrics failed, or if some failed and the others ask
// for fewer replicas than there are. Err holds the first failure.
func (d *Decision) evaluate() (replicas int32, name string, ok bool) {
	if err := d.checkSelector(); err != nil {
		d.Err = err
		return 0, "", false
	}
	specs := d.in.Autoscaler.Spec.Metrics
	d.current = make([]autoscalingv2.MetricStatus, len(specs))
	var first *failure
	failed := 0
	for i := range specs {
		p, f := d.evaluateMetric(i, &d.current[i])
		d.Metrics = append(d.Metrics, MetricResult{Type: specs[i].Type, Replicas: p.replicas, Failed: f != nil})
		if f != nil {
			d.warn(f.reason, f.err.Error())
			if failed++; first == nil {
				first = f
			}
			continue
		}
		if replicas == 0 || p.replicas > replicas {
			replicas, name = p.replicas, p.name
		}
	}
	if first != nil {
		d.Err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %s%w", failed, len(specs),
			first.prefix, first.err)
		if failed == len(specs) || replicas < d.in.Scale.Spec.Replicas {
			d.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, first.reason,
				fmt.Sprintf("the HPA was unable to compute the replica count: %v", first.err))
			return 0, "", false
		}
	}
	d.set(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+name)
	return replicas, name, true
}

// checkSelector returns an error if the pods of the target are not known, or not its own alone.
func (d *Decision) checkSelector() error {
	reject := func(event, reason, message, condition string) error {
		d.warn(event, message)
		d.set(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, condition)
		return errors.New(message)
	}
	selector := d.in.Scale.Status.Selector
	switch {
	case selector == "":
		return reject("SelectorRequired", "InvalidSelector", "selector is required",
			"the HPA target's scale is missing a selector")
	case d.in.SelectorError != nil:
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v",
			d.in.SelectorError)
		return reject("InvalidSelector", "InvalidSelector", message, message)
	case len(d.in.Sharing) > 1:
		message := fmt.Sprintf("pods by selector %s are controlled by more than one HPA (e.g. [%s])", selector,
			strings.Join(d.in.Sharing[:2], " "))
		return reject("AmbiguousSelector", "AmbiguousSelector", message, message)
	}
	return nil
}

// evaluateMetric returns the proposal of the metric at an index of the list and sets its status.
func (d *Decision) evaluateMetric(index int, status *autoscalingv2.MetricStatus) (proposal, *failure) {
	spec := &d.in.Autoscaler.Spec.Metrics[index]
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		p, err := d.evaluateResource(spec.Resource.Name, "", spec.Resource.Target)
		if err != nil {
			return p, &failure{"FailedGetResourceMetric", err,
				fmt.Sprintf("failed to get %s resource metric value: ", spec.Resource.Name)}
		}
		status.Resource = &autoscalingv2.ResourceMetricStatus{Name: spec.Resource.Name, Current: p.current}
		status.Type = spec.Type
		return p, nil
	case autoscalingv2.ContainerResourceMetricSourceType:
		of := spec.ContainerResource
		p, err := d.evaluateResource(of.Name, of.Container, of.Target)
		if err != nil {
			return p, &failure{"FailedGetContainerResourceMetric", err,
				fmt.Sprintf("failed to get %s container metric value: ", of.Container)}
		}
		status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name: of.Name, Container: of.Container, Current: p.current,
		}
		status.Type = spec.Type
		return p, nil
	case autoscalingv2.PodsMetricSourceType:
		return d.evaluatePods(index, spec.Pods, status)
	case autoscalingv2.ObjectMetricSourceType:
		return d.evaluateObject(index, spec.Object, status)
	case autoscalingv2.ExternalMetricSourceType:
		return d.evaluateExternal(index, spec.External, status)
	}
	return proposal{}, &failure{"InvalidMetricSourceType",
		fmt.Errorf("unknown metric source type %q", spec.Type), ""}
}

// evaluateResource returns the proposal for the usage of a resource, of one container or of whole pods.
func (d *Decision) evaluateResource(name corev1.ResourceName, container string,
	target autoscalingv2.MetricTarget) (p proposal, err error) {
	c := calculation{in: d.in, resource: name, container: container, tolerances: tolerancesOf(d.in.Autoscaler)}
	utilization := target.AverageValue == nil
	what := "usage"
	switch {
	case utilization && target.AverageUtilization == nil:
		return p, errors.New("invalid resource metric source: neither an average utilization target nor an average" +
			" value (usage) target was set")
	case utilization:
		c.target, c.byRequest = int64(*target.AverageUtilization), true
		what = "utilization"
		p.name = fmt.Sprintf("%s resource utilization (percentage of request)", name)
		if container != "" {
			p.name = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
		}
	default:
		c.target = target.AverageValue.MilliValue()
		p.name = fmt.Sprintf("%s resource", name)
	}
	result, err := c.run()
	if err != nil {
		return p, fmt.Errorf("failed to get %s %s: %w", name, what, err)
	}
	p.replicas = result.replicas
	p.current.AverageValue = milliQuantity(name, result.average)
	if utilization {
		p.current.AverageUtilization = &result.utilization
	}
	return p, nil
}

// milliQuantity returns a quantity in the format of metrics.k8s.io.
func milliQuantity(name corev1.ResourceName, value int64) *resource.Quantity {
	format := resource.DecimalSI
	if name == corev1.ResourceMemory {
		format = resource.BinarySI
	}
	return resource.NewMilliQuantity(value, format)
}
