package autoscaling

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func valueTarget(value string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse(value))}
}

func averageTarget(value string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{
		Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse(value)),
	}
}

func podsMetricOf(average string) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "rps"}, Target: averageTarget(average),
		},
	}
}

func objectMetricOf(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{Kind: "Service", Name: "web", APIVersion: "v1"},
			Metric:          autoscalingv2.MetricIdentifier{Name: "rps"}, Target: target,
		},
	}
}

func externalMetricOf(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{
		Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{
				Name: "queue", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"q": "a"}},
			}, Target: target,
		},
	}
}

// TestReplicasFromValues: the results are those of upstream's replica calculator.
func TestReplicasFromValues(t *testing.T) {
	t.Parallel()
	byPod := func(values ...int64) Values {
		out := Values{ByPod: map[string]int64{}}
		for i, v := range values {
			out.ByPod[fmt.Sprint("web-", i)] = v * 1000
		}
		return out
	}
	total := func(value int64) Values { return Values{Total: value * 1000} }
	pending := func(pod int) func(*Input) {
		return func(in *Input) { in.Pods[pod].Status.Phase = corev1.PodPending }
	}
	unready := func(in *Input) { in.Pods[1].Status.Conditions[0].Status = corev1.ConditionFalse }
	object, external := objectMetricOf, externalMetricOf
	rows := map[string]struct {
		metric autoscalingv2.MetricSpec
		pods   int
		values Values
		change func(*Input)
		want   int32
		status string // of the metric
	}{
		"pods above the target": {metric: podsMetricOf("10"), pods: 2, values: byPod(30, 10), want: 4,
			status: `{"averageValue":"20"}`},
		"pods within the tolerance": {metric: podsMetricOf("10"), pods: 2, values: byPod(11, 11), want: 2,
			status: `{"averageValue":"11"}`},
		"pods below the target": {metric: podsMetricOf("10"), pods: 4, values: byPod(2, 3, 2, 3), want: 1,
			status: `{"averageValue":"2500m"}`},
		"pods without a value have the target when scaling down": {metric: podsMetricOf("10"), pods: 4,
			values: byPod(2, 2), want: 3, status: `{"averageValue":"2"}`},
		"pods without a value have none when scaling up": {metric: podsMetricOf("10"), pods: 4,
			values: byPod(30, 30), want: 6, status: `{"averageValue":"30"}`},
		"pending pods have no value when scaling up": {metric: podsMetricOf("10"), pods: 2,
			values: byPod(24, 50), change: pending(1), want: 3, status: `{"averageValue":"24"}`},
		"unready pods that run count": {metric: podsMetricOf("10"), pods: 2, values: byPod(20, 20), change: unready,
			want: 4, status: `{"averageValue":"20"}`},
		"values of unknown pods count": {metric: podsMetricOf("10"), pods: 1, values: byPod(10, 50), want: 3,
			status: `{"averageValue":"30"}`},

		"an object above its value": {metric: object(valueTarget("10")), pods: 2, values: total(15), want: 3,
			status: `{"value":"15"}`},
		"an object within the tolerance": {metric: object(valueTarget("10")), pods: 2, values: total(9), want: 2,
			status: `{"value":"9"}`},
		"an object scales the ready pods": {metric: object(valueTarget("10")), pods: 2, values: total(40),
			change: unready, want: 4, status: `{"value":"40"}`},
		"an object's average": {metric: object(averageTarget("10")), pods: 2, values: total(35), want: 4,
			status: `{"averageValue":"17500m"}`},
		"an object's average counts pods of the status": {metric: object(averageTarget("10")), pods: 2,
			values: total(39), change: func(in *Input) { in.Scale.Status.Replicas = 4 }, want: 4,
			status: `{"averageValue":"9750m"}`},
		"an object's average rounds up": {metric: object(averageTarget("10")), pods: 3, values: total(10), want: 1,
			status: `{"averageValue":"3334m"}`},

		"an external value": {metric: external(valueTarget("10")), pods: 2, values: total(15), want: 3,
			status: `{"value":"15"}`},
		"an external value from zero": {metric: external(valueTarget("10")), values: total(25), want: 3,
			change: scaledToZero, status: `{"value":"25"}`},
		"an external average": {metric: external(averageTarget("10")), pods: 2, values: total(25), want: 3,
			status: `{"averageValue":"12500m"}`},
		"an external average from zero": {metric: external(averageTarget("10")), values: total(25), want: 3,
			change: scaledToZero, status: `{"averageValue":"25"}`},
		"an external average of nothing": {metric: external(averageTarget("10")), pods: 1, values: total(0), want: 0,
			change: func(in *Input) { in.Autoscaler.Spec.MinReplicas = new(int32(0)) }, status: `{"averageValue":"0"}`},
	}
	for name, row := range rows {
		in := newInput(row.metric, make([]int64, row.pods)...)
		in.Usage, in.Values = nil, []Values{row.values}
		in.Memory.Recommendations = []Recommendation{{row.want, now.Add(-defaultDownWindow * 2)}}
		if row.change != nil {
			row.change(&in)
		}
		d := Decide(in)
		got := in.Scale.Spec.Replicas
		if d.Rescale {
			got = d.Replicas
		}
		if got != row.want || d.Err != nil {
			t.Errorf("%s: got %d replicas, want %d (%v)", name, got, row.want, d.Err)
		}
		if len(d.current) != 1 || currentOf(t, d.current[0]) != row.status || d.current[0].Type != row.metric.Type {
			t.Errorf("%s: got status %+v, want %s", name, d.current, row.status)
		}
	}
}

func scaledToZero(in *Input) {
	in.Autoscaler.Spec.MinReplicas = new(int32(0))
	in.Autoscaler.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{
		{Type: autoscalingv2.ScaledToZero, Status: corev1.ConditionTrue},
	}
}

// currentOf returns the current value in the status of a metric in JSON.
func currentOf(t *testing.T, status autoscalingv2.MetricStatus) string {
	t.Helper()
	var current autoscalingv2.MetricValueStatus
	switch {
	case status.Pods != nil:
		current = status.Pods.Current
	case status.Object != nil:
		if current = status.Object.Current; status.Object.DescribedObject.Name != "web" {
			t.Errorf("got object %+v", status.Object.DescribedObject)
		}
	case status.External != nil:
		if current = status.External.Current; status.External.Metric.Selector == nil {
			t.Error("the selector is not in the status")
		}
	}
	out, err := json.Marshal(current)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestValueFailures checks condition, event and error of a metric without values.
func TestValueFailures(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		metric                   autoscalingv2.MetricSpec
		reason, condition, first string
	}{
		"pods": {podsMetricOf("1"), "FailedGetPodsMetric", "unable to get metric rps: down",
			"failed to get pods metric value: unable to get metric rps: down"},
		"object": {objectMetricOf(valueTarget("1")), "FailedGetObjectMetric",
			"unable to get metric rps: down on Service ns/web",
			"failed to get object metric value: unable to get metric rps: down on Service ns/web"},
		"average of an object": {objectMetricOf(averageTarget("1")), "FailedGetObjectMetric",
			"unable to get metric rps: down on Service ns/web",
			"failed to get object metric value: failed to get rps object metric: unable to get metric rps"},
		"external": {externalMetricOf(valueTarget("1")), "FailedGetExternalMetric",
			"unable to get external metric ns/queue/&LabelSelector{MatchLabels:map[string]string{q: a,},",
			"failed to get queue external metric value: failed to get external metric queue: unable to get external"},
		"average of an external one": {externalMetricOf(averageTarget("1")), "FailedGetExternalMetric",
			"unable to get external metric ns/queue/",
			"failed to get queue external metric value: failed to get queue external metric: unable to get external"},
	}
	for name, row := range rows {
		in := newInput(row.metric, 1, 1)
		in.Values = []Values{{Err: errors.New("down")}}
		d := Decide(in)
		c := d.Status.Conditions[len(d.Status.Conditions)-1]
		if d.Rescale || c.Type != autoscalingv2.ScalingActive || c.Status != corev1.ConditionFalse ||
			c.Reason != row.reason || !strings.HasPrefix(c.Message,
			"the HPA was unable to compute the replica count: "+row.condition) {
			t.Errorf("%s: got condition %+v", name, c)
		}
		if got := reasons(d); got != row.reason+" FailedComputeMetricsReplicas" {
			t.Errorf("%s: got events %s", name, got)
		}
		if !strings.HasPrefix(d.Err.Error(), "invalid metrics (1 invalid out of 1), first error is: "+row.first) {
			t.Errorf("%s: got error %v", name, d.Err)
		}
	}
	ready := newInput(objectMetricOf(valueTarget("1")), 1)
	ready.Values, ready.Pods = []Values{{Total: 5000}}, nil
	if d := Decide(ready); d.Err == nil || !strings.Contains(d.Err.Error(), "unable to calculate ready pods: no pods") {
		t.Errorf("without pods: got error %v", d.Err)
	}
}

// TestSeveralMetricsWithValues: the highest proposal wins, and one that failed prevents scaling down.
func TestSeveralMetricsWithValues(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		values []Values
		want   int32
	}{
		"the highest":            {[]Values{{Total: 20000}, {Total: 60000}}, 6},
		"up with a failed one":   {[]Values{{Err: errors.New("down")}, {Total: 60000}}, 6},
		"down without a failure": {[]Values{{Total: 20000}, {Total: 10000}}, 2},
		"not down with one":      {[]Values{{Total: 20000}, {Err: errors.New("down")}}, 4},
	} {
		in := newInput(objectMetricOf(averageTarget("10")), 1, 1, 1, 1)
		in.Autoscaler.Spec.Metrics = append(in.Autoscaler.Spec.Metrics, externalMetricOf(averageTarget("10")))
		in.Values = row.values
		in.Memory.Recommendations = []Recommendation{{row.want, now.Add(-defaultDownWindow * 2)}}
		got := in.Scale.Spec.Replicas
		if d := Decide(in); d.Rescale {
			got = d.Replicas
		}
		if got != row.want {
			t.Errorf("%s: got %d replicas, want %d", name, got, row.want)
		}
	}
}
