package autoscaling

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func utilization(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{
				Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent,
			},
		},
	}
}

func averageValue(name corev1.ResourceName, value string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: name, Target: autoscalingv2.MetricTarget{
				Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse(value)),
			},
		},
	}
}

func ofContainer(name string, percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: name, Target: utilization(percent).Resource.Target,
		},
	}
}

var podsMetric = autoscalingv2.MetricSpec{
	Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "m"},
	},
}

// newInput returns an input of an autoscaler from 1 to 10 replicas whose target has a pod per usage in milli-cores.
// Each pod requests 100m and is ready since long.
func newInput(metric autoscalingv2.MetricSpec, usages ...int64) Input {
	in := Input{
		Now: now,
		Autoscaler: &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", Generation: 4},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				MinReplicas: new(int32(1)), MaxReplicas: 10, Metrics: []autoscalingv2.MetricSpec{metric},
			},
		},
		Scale: &autoscalingv1.Scale{
			Spec:   autoscalingv1.ScaleSpec{Replicas: int32(len(usages))},
			Status: autoscalingv1.ScaleStatus{Replicas: int32(len(usages)), Selector: "app=web"},
		},
		Sharing: []string{"ns/web"},
	}
	for i, milli := range usages {
		name := fmt.Sprint("web-", i)
		in.Pods = append(in.Pods, newPod(name))
		in.Usage = append(in.Usage, PodUsage{Pod: name, At: now, Window: 30 * time.Second,
			Containers: map[string]corev1.ResourceList{"main": {
				corev1.ResourceCPU:    *resource.NewMilliQuantity(milli, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(milli<<20, resource.BinarySI),
			}}})
	}
	return in
}

func newPod(name string) *corev1.Pod {
	long := metav1.NewTime(now.Add(-time.Hour))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &long, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: long},
		}},
	}
}

// startedBefore makes a pod one that started some time ago, and became ready or not ready later.
func startedBefore(p *corev1.Pod, started, changed time.Duration, ready corev1.ConditionStatus) {
	p.Status.StartTime = &metav1.Time{Time: now.Add(-started)}
	p.Status.Conditions[0].Status = ready
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-changed))
}

// TestReplicasFromUsage: the target is 50% of 100m, the tolerance 10%.
func TestReplicasFromUsage(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		in     Input
		change func(*Input)
		want   int32
	}{
		"above target":                  {in: newInput(utilization(50), 100, 100), want: 4},
		"below target":                  {in: newInput(utilization(50), 10, 10, 10, 10), want: 1},
		"rounded up":                    {in: newInput(utilization(50), 60, 60), want: 3},
		"within the tolerance above":    {in: newInput(utilization(50), 55, 55), want: 2},
		"within the tolerance below":    {in: newInput(utilization(50), 45, 45), want: 2},
		"average value":                 {in: newInput(averageValue(corev1.ResourceCPU, "25m"), 50, 50), want: 4},
		"average value of memory":       {in: newInput(averageValue(corev1.ResourceMemory, "10Mi"), 20, 20), want: 4},
		"of a container":                {in: newInput(ofContainer("main", 50), 100), want: 2},
		"a tolerance of its own, above": {in: newInput(utilization(50), 55, 55), want: 3, change: tolerance("0.05")},
		"a tolerance of its own, below": {in: newInput(utilization(50), 70, 70), want: 2, change: tolerance("0.5")},
		"failed and terminating pods do not count": {in: newInput(utilization(50), 100, 500, 500), want: 2,
			change: func(in *Input) {
				in.Pods[1].Status.Phase = corev1.PodFailed
				in.Pods[2].DeletionTimestamp = &metav1.Time{Time: now}
				in.Scale.Spec.Replicas = 1
			}},
		"pending pods use nothing when scaling up": {in: newInput(utilization(50), 120, 120), want: 3,
			change: func(in *Input) { in.Pods[1].Status.Phase = corev1.PodPending }},
		"pending pods do not count when scaling down": {in: newInput(utilization(50), 10, 10), want: 1,
			change: func(in *Input) { in.Pods[1].Status.Phase = corev1.PodPending }},
		"missing pods use nothing when scaling up": {in: newInput(utilization(50), 150, 150, 0, 0), want: 6,
			change: func(in *Input) { in.Usage = in.Usage[:2] }},
		"missing pods use their request when scaling down": {in: newInput(utilization(50), 10, 10, 0), want: 3,
			change: func(in *Input) { in.Usage = in.Usage[:2] }},
		"missing pods do not turn the direction": {in: newInput(utilization(50), 60, 0, 0), want: 3,
			change: func(in *Input) { in.Usage = in.Usage[:1] }},
		"a starting pod is not ready": {in: newInput(utilization(50), 120, 500), want: 3,
			change: func(in *Input) { startedBefore(in.Pods[1], time.Minute, 50*time.Second, corev1.ConditionFalse) }},
		"the first window of a starting pod is ignored": {in: newInput(utilization(50), 120, 500), want: 3,
			change: func(in *Input) { startedBefore(in.Pods[1], time.Minute, 10*time.Second, corev1.ConditionTrue) }},
		"a later window of a starting pod counts": {in: newInput(utilization(50), 20, 180), want: 4,
			change: func(in *Input) { startedBefore(in.Pods[1], time.Minute, 40*time.Second, corev1.ConditionTrue) }},
		"a pod that was never ready": {in: newInput(utilization(50), 120, 500), want: 3,
			change: func(in *Input) {
				startedBefore(in.Pods[1], 10*time.Minute, 10*time.Minute-20*time.Second, corev1.ConditionFalse)
			}},
		"a pod that is no longer ready counts": {in: newInput(utilization(50), 20, 180), want: 4,
			change: func(in *Input) { startedBefore(in.Pods[1], 10*time.Minute, time.Minute, corev1.ConditionFalse) }},
		"the highest of several metrics": {in: newInput(utilization(50), 60, 60), want: 4, change: func(in *Input) {
			in.Autoscaler.Spec.Metrics = append(in.Autoscaler.Spec.Metrics, averageValue(corev1.ResourceCPU, "20m"))
		}},
		"up although a metric fails": {in: newInput(utilization(50), 100), want: 2, change: func(in *Input) {
			in.Autoscaler.Spec.Metrics = append(in.Autoscaler.Spec.Metrics, podsMetric)
		}},
		"not down if a metric fails": {in: newInput(utilization(50), 10, 10), want: 2, change: func(in *Input) {
			in.Autoscaler.Spec.Metrics = append(in.Autoscaler.Spec.Metrics, podsMetric)
		}},
		"not more than twice as many": {in: newInput(utilization(1), 100, 100, 100), want: 6},
		"at least four":               {in: newInput(utilization(1), 100), want: 4},
		"at most maxReplicas":         {in: newInput(utilization(1), 1, 100, 100, 100, 100, 100), want: 10},
		"above maxReplicas": {in: newInput(utilization(50), 50, 50, 50), want: 2, change: func(in *Input) {
			in.Autoscaler.Spec.MaxReplicas = 2
		}},
		"below minReplicas": {in: newInput(utilization(50), 50), want: 3, change: func(in *Input) {
			in.Autoscaler.Spec.MinReplicas = new(int32(3))
		}},
		"scaled to zero by a user": {in: newInput(utilization(50)), want: 0},
	}
	for name, row := range rows {
		// A stabilization window would hold back the first decision.
		row.in.Memory.Recommendations = []Recommendation{{row.want, now.Add(-time.Hour)}}
		if row.change != nil {
			row.change(&row.in)
		}
		current := row.in.Scale.Spec.Replicas
		d := Decide(row.in)
		got := current
		if d.Rescale {
			got = d.Replicas
		}
		if got != row.want {
			t.Errorf("%s: got %d replicas, want %d (%v)", name, got, row.want, d.Err)
		}
	}
}

func tolerance(value string) func(*Input) {
	return func(in *Input) {
		q := resource.MustParse(value)
		in.Autoscaler.Spec.Behavior = behavior(0, 0, 100)
		in.Autoscaler.Spec.Behavior.ScaleUp.Tolerance, in.Autoscaler.Spec.Behavior.ScaleDown.Tolerance = &q, &q
	}
}

// behavior returns windows in seconds and one policy in pods per minute for both directions.
func behavior(up, down, pods int32) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	rules := func(window int32) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: &window, SelectPolicy: new(autoscalingv2.MaxChangePolicySelect),
			Policies: []autoscalingv2.HPAScalingPolicy{{
				Type: autoscalingv2.PodsScalingPolicy, Value: pods, PeriodSeconds: 60,
			}},
		}
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(up), ScaleDown: rules(down)}
}

// conditions returns "Type=Status Reason" of all conditions.
func conditions(s autoscalingv2.HorizontalPodAutoscalerStatus) string {
	out := make([]string, 0, len(s.Conditions))
	for _, c := range s.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return strings.Join(out, ", ")
}

func reasons(d Decision) string {
	out := make([]string, 0, len(d.Events))
	for _, e := range d.Events {
		out = append(out, e.Reason)
	}
	return strings.Join(out, " ")
}

// TestFailures checks the conditions and events of inputs without a number of replicas.
func TestFailures(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		change                            func(*Input)
		conditions, events, wantInMessage string
	}{
		"no scale": {
			change:     func(in *Input) { in.ScaleError = errors.New("gone") },
			conditions: "AbleToScale=False FailedGetScale", events: "FailedGetScale", wantInMessage: "gone",
		},
		"no selector": {
			change:     func(in *Input) { in.Scale.Status.Selector = "" },
			conditions: "AbleToScale=True SucceededGetScale, ScalingActive=False InvalidSelector",
			events:     "SelectorRequired FailedComputeMetricsReplicas", wantInMessage: "missing a selector",
		},
		"invalid selector": {
			change:     func(in *Input) { in.SelectorError = errors.New("bad") },
			conditions: "AbleToScale=True SucceededGetScale, ScalingActive=False InvalidSelector",
			events:     "InvalidSelector FailedComputeMetricsReplicas", wantInMessage: "couldn't convert selector",
		},
		"shared pods": {
			change:     func(in *Input) { in.Sharing = []string{"ns/a", "ns/web"} },
			conditions: "AbleToScale=True SucceededGetScale, ScalingActive=False AmbiguousSelector",
			events:     "AmbiguousSelector FailedComputeMetricsReplicas", wantInMessage: "[ns/a ns/web]",
		},
		"no metrics API": {
			change:     func(in *Input) { in.UsageError = errors.New("down") },
			conditions: "AbleToScale=True SucceededGetScale, ScalingActive=False FailedGetResourceMetric",
			events:     "FailedGetResourceMetric FailedComputeMetricsReplicas",
			wantInMessage: "the HPA was unable to compute the replica count: failed to get cpu utilization: " +
				"unable to get metrics for resource cpu: down",
		},
		"no request": {
			change:        func(in *Input) { in.Pods[0].Spec.Containers[0].Resources.Requests = nil },
			conditions:    "AbleToScale=True SucceededGetScale, ScalingActive=False FailedGetResourceMetric",
			events:        "FailedGetResourceMetric FailedComputeMetricsReplicas",
			wantInMessage: "missing request for cpu in container main of Pod web-0",
		},
		"unknown container": {
			change:        func(in *Input) { in.Autoscaler.Spec.Metrics[0] = ofContainer("other", 50) },
			conditions:    "AbleToScale=True SucceededGetScale, ScalingActive=False FailedGetContainerResourceMetric",
			events:        "FailedGetContainerResourceMetric FailedComputeMetricsReplicas",
			wantInMessage: "did not receive metrics for targeted pods",
		},
		"only unready pods": {
			change:        func(in *Input) { in.Pods[0].Status.Phase = corev1.PodPending },
			conditions:    "AbleToScale=True SucceededGetScale, ScalingActive=False FailedGetResourceMetric",
			events:        "FailedGetResourceMetric FailedComputeMetricsReplicas",
			wantInMessage: "did not receive metrics for targeted pods (pods might be unready)",
		},
	}
	for name, row := range rows {
		in := newInput(utilization(50), 100)
		row.change(&in)
		d := Decide(in)
		if got := conditions(d.Status); got != row.conditions || d.Rescale || d.Err == nil {
			t.Errorf("%s: got conditions %s, rescale %t, error %v", name, got, d.Rescale, d.Err)
		}
		if got := reasons(d); got != row.events {
			t.Errorf("%s: got events %s, want %s", name, got, row.events)
		}
		last := d.Status.Conditions[len(d.Status.Conditions)-1]
		if !strings.Contains(last.Message, row.wantInMessage) {
			t.Errorf("%s: got message %q, want %q", name, last.Message, row.wantInMessage)
		}
	}
}

// TestRescaled checks the status and events after a change of the scale, and after a failed one.
func TestRescaled(t *testing.T) {
	t.Parallel()
	in := newInput(utilization(50), 100, 100)
	in.Autoscaler.Spec.Behavior = behavior(0, 0, 4)
	d := Decide(in)
	done := d.Rescaled(nil)
	want := "AbleToScale=True SucceededRescale, ScalingActive=True ValidMetricFound, " +
		"ScalingLimited=False DesiredWithinRange, ScaledToZero=False NotScaledToZero"
	if got := conditions(done.Status); got != want {
		t.Errorf("got conditions %s", got)
	}
	s := done.Status
	if s.CurrentReplicas != 2 || s.DesiredReplicas != 4 || *s.ObservedGeneration != 4 ||
		!s.LastScaleTime.Time.Equal(now) ||
		*s.CurrentMetrics[0].Resource.Current.AverageUtilization != 100 ||
		s.CurrentMetrics[0].Resource.Current.AverageValue.String() != "100m" {
		t.Errorf("got status %+v", s)
	}
	if len(done.Events) != 1 || done.Events[0].Message != "New size: 4; reason: cpu resource utilization "+
		"(percentage of request) above target" {
		t.Errorf("got events %+v", done.Events)
	}
	if len(done.Memory.ScaleUps) != 1 || done.Memory.ScaleUps[0] != (ScaleEvent{2, now}) {
		t.Errorf("got memory %+v", done.Memory)
	}
	failed := d.Rescaled(errors.New("denied"))
	if got := conditions(failed.Status); !strings.HasPrefix(got, "AbleToScale=False FailedUpdateScale") ||
		failed.Status.LastScaleTime != nil || reasons(failed) != "FailedRescale" || len(failed.Memory.ScaleUps) > 0 {
		t.Errorf("after a failure: got conditions %s, events %s", got, reasons(failed))
	}
}
