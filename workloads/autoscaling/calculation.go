package autoscaling

import (
	"errors"
	"fmt"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcehelpers "k8s.io/component-helpers/resource"
)

const (
	// initializationPeriod is how long after the start of a pod its CPU usage is ignored while it is not ready.
	initializationPeriod = 5 * time.Minute
	// initialReadinessDelay is how long after the start of a pod a change to not ready is its first state.
	initialReadinessDelay = 30 * time.Second
	// defaultTolerance is by how much usage may differ from its target without an effect.
	defaultTolerance = 0.1
)

// tolerances are by how much the ratio of usage and target may differ from 1.
type tolerances struct{ down, up float64 }

func tolerancesOf(hpa *autoscalingv2.HorizontalPodAutoscaler) tolerances {
	t := tolerances{defaultTolerance, defaultTolerance}
	if b := hpa.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

func (t tolerances) include(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// calculation computes the replicas for one resource or Pods metric.
type calculation struct {
	in         Input
	resource   corev1.ResourceName
	container  string // empty: whole pods
	tolerances tolerances
	byRequest  bool  // target is a percentage of the requests
	target     int64 // percentage, or milli-units per pod
	// custom are the values of a Pods metric by pod. If it is not nil, it is used instead of a resource.
	custom map[string]int64

	requests map[string]int64 // milli-units by pod, only with byRequest
}

// result is the outcome of a calculation.
type result struct {
	replicas    int32
	utilization int32 // in percent of the requests, only with byRequest
	average     int64 // milli-units per pod
}

// sample is the usage of one pod.
type sample struct {
	usage PodUsage
	value int64 // milli-units
}

// groups are the pods by readiness and available metrics.
type groups struct {
	ready            int
	unready, missing []string
	withMetric       map[string]int64 // usage of the ready pods
}

func (c *calculation) run() (out result, err error) {
	switch {
	case c.custom != nil:
	case c.in.UsageError != nil:
		return out, c.unavailable(c.in.UsageError)
	case len(c.in.Usage) == 0:
		return out, c.unavailable(errors.New("no metrics returned from resource metrics API"))
	}
	if len(c.in.Pods) == 0 {
		return out, errors.New("no pods returned by selector while calculating replica count")
	}
	g := c.group()
	if len(g.withMetric) == 0 {
		return out, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	if c.byRequest {
		if err := c.readRequests(); err != nil {
			return out, err
		}
	}
	ratio, out, err := c.ratio(g.withMetric)
	if err != nil {
		return out, err
	}
	out.replicas = c.in.Scale.Spec.Replicas
	upWithUnready := len(g.unready) > 0 && ratio > 1
	if !upWithUnready && len(g.missing) == 0 {
		if !c.tolerances.include(ratio) {
			out.replicas = ceil(ratio * float64(g.ready))
		}
		return out, nil
	}
	c.assume(g, ratio)
	again, _, err := c.ratio(g.withMetric)
	if err != nil {
		return out, err
	}
	out.replicas = c.withAssumed(out.replicas, ratio, again, len(g.withMetric))
	return out, nil
}

// withAssumed returns the number of replicas for the ratio with the assumed values of pods, again. It is current if
// that is too small a change, or one in another direction than that of ratio, the ratio of the known values.
func (c *calculation) withAssumed(current int32, ratio, again float64, pods int) int32 {
	if c.tolerances.include(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return current
	}
	n := ceil(again * float64(pods))
	if again < 1 && n > current || again > 1 && n < current {
		return current
	}
	return n
}

func (c *calculation) unavailable(err error) error {
	return fmt.Errorf("unable to get metrics for resource %s: %w", c.resource, err)
}

// group divides the pods. Failed and terminating ones are ignored.
func (c *calculation) group() groups {
	samples := c.samples()
	g := groups{withMetric: map[string]int64{}}
	known := map[string]bool{}
	for _, pod := range c.in.Pods {
		known[pod.Name] = true
		s, found := samples[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
		case pod.Status.Phase == corev1.PodPending:
			g.unready = append(g.unready, pod.Name)
		case !found:
			g.missing = append(g.missing, pod.Name)
		case c.resource == corev1.ResourceCPU && c.initializing(pod, s.usage):
			g.unready = append(g.unready, pod.Name)
		default:
			g.ready++
			g.withMetric[pod.Name] = s.value
		}
	}
	if !c.byRequest {
		for name, s := range samples {
			if !known[name] {
				g.withMetric[name] = s.value // as upstream: the pod was not observed yet
			}
		}
	}
	return g
}

// samples returns the values of the pods.
func (c *calculation) samples() map[string]sample {
	samples := map[string]sample{}
	for pod, value := range c.custom {
		samples[pod] = sample{value: value}
	}
	if c.custom != nil {
		return samples
	}
	for _, u := range c.in.Usage {
		if value, ok := c.usage(u); ok {
			samples[u.Pod] = sample{u, value}
		}
	}
	return samples
}

// usage returns the usage in milli-units. It reports false if it is not known for each container.
func (c *calculation) usage(u PodUsage) (sum int64, ok bool) {
	if c.container != "" {
		q, ok := u.Containers[c.container][c.resource]
		return q.MilliValue(), ok
	}
	for _, list := range u.Containers {
		q, ok := list[c.resource]
		if !ok {
			return 0, false
		}
		sum += q.MilliValue()
	}
	return sum, len(u.Containers) > 0
}

// initializing reports whether the CPU usage of a pod may still be that of its start.
func (c *calculation) initializing(pod *corev1.Pod, u PodUsage) bool {
	var ready *corev1.PodCondition
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			ready = &pod.Status.Conditions[i]
		}
	}
	start := pod.Status.StartTime
	if ready == nil || start == nil {
		return true
	}
	unready, since := ready.Status == corev1.ConditionFalse, ready.LastTransitionTime
	if start.Add(initializationPeriod).After(c.in.Now) {
		return unready || u.At.Before(since.Add(u.Window))
	}
	return unready && start.Add(initialReadinessDelay).After(since.Time)
}

// readRequests computes the requests of all pods.
func (c *calculation) readRequests() error {
	c.requests = map[string]int64{}
	for _, pod := range c.in.Pods {
		n, err := c.request(pod)
		if err != nil {
			return err
		}
		c.requests[pod.Name] = n
	}
	return nil
}

// request returns the request of a pod or container in milli-units. Requests of the pod itself come before those of its
// containers.
func (c *calculation) request(pod *corev1.Pod) (sum int64, err error) {
	if c.container == "" && resourcehelpers.IsPodLevelRequestsSet(pod) {
		q, ok := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})[c.resource]
		if !ok {
			return 0, fmt.Errorf("missing pod-level request for %s in Pod %s", c.resource, pod.Name)
		}
		return q.MilliValue(), nil
	}
	found := false
	add := func(of *corev1.Container) error {
		if c.container != "" && c.container != of.Name {
			return nil
		}
		q, ok := of.Resources.Requests[c.resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", c.resource, of.Name, pod.Name)
		}
		sum, found = sum+q.MilliValue(), true
		return nil
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	for i := range pod.Spec.InitContainers {
		of := &pod.Spec.InitContainers[i]
		if of.RestartPolicy != nil && *of.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if err := add(of); err != nil {
				return 0, err
			}
		}
	}
	if c.container != "" && !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", c.container, pod.Name)
	}
	return sum, nil
}

// ratio returns the ratio of the usage and its target.
func (c *calculation) ratio(usage map[string]int64) (float64, result, error) {
	total, requested, n := int64(0), int64(0), int64(0)
	for pod, value := range usage {
		total += value
		requested += c.requests[pod]
		n++
	}
	out := result{average: total / n}
	if !c.byRequest {
		return float64(out.average) / float64(c.target), out, nil
	}
	if requested == 0 {
		return 0, out, errors.New("no metrics returned matched known pods")
	}
	out.utilization = int32(total * 100 / requested)
	return float64(out.utilization) / float64(c.target), out, nil
}

// assume adds pods without usage to the ready ones, so that they work against a change: they use their whole request
// (or the target) when scaling down, and nothing when scaling up.
func (c *calculation) assume(g groups, ratio float64) {
	for _, pod := range g.missing {
		switch {
		case ratio < 1 && c.byRequest:
			g.withMetric[pod] = c.requests[pod] * max(100, c.target) / 100
		case ratio < 1:
			g.withMetric[pod] = c.target
		case ratio > 1:
			g.withMetric[pod] = 0
		}
	}
	if ratio > 1 {
		for _, pod := range g.unready {
			g.withMetric[pod] = 0
		}
	}
}

// ceil rounds up to a number of replicas.
func ceil(x float64) int32 { return int32(min(math.Ceil(x), math.MaxInt32)) }
