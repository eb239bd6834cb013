package scheme

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"
)

const autoscaler = `
metadata: {name: web, namespace: a, annotations: {note: kept}}
spec:
  minReplicas: 2
  maxReplicas: 5
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
  - type: Pods
    pods: {metric: {name: m, selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: "1"}}
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 10Mi}}}
  - type: ContainerResource
    containerResource: {name: cpu, container: c, target: {type: Utilization, averageUtilization: 5}}
  - type: Object
    object:
      describedObject: {apiVersion: v1, kind: Service, name: s}
      metric: {name: m}
      target: {type: Value, value: "3"}
  - {type: External, external: {metric: {name: m}, target: {type: AverageValue, averageValue: "7"}}}
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
  behavior:
    scaleUp:
      {stabilizationWindowSeconds: 5, selectPolicy: Min, tolerance: 50m,
       policies: [{type: Pods, value: 4, periodSeconds: 15}]}
status:
  observedGeneration: 3
  lastScaleTime: "2026-01-02T03:04:05Z"
  currentReplicas: 3
  desiredReplicas: 4
  currentMetrics:
  - {type: Resource, resource: {name: cpu, current: {averageUtilization: 70, averageValue: 70m}}}
  conditions:
  - {type: AbleToScale, status: "True", reason: ReadyForNewScale, message: m,
     lastTransitionTime: "2026-01-02T03:04:05Z"}
`

// TestAutoscalerConversion converts an autoscaler that uses all fields to autoscaling/v1 and back.
func TestAutoscalerConversion(t *testing.T) {
	t.Parallel()
	s, in := New(), &autoscalingv2.HorizontalPodAutoscaler{}
	if err := yaml.UnmarshalStrict([]byte(autoscaler), in); err != nil {
		t.Fatal(err)
	}
	v1, back := &autoscalingv1.HorizontalPodAutoscaler{}, &autoscalingv2.HorizontalPodAutoscaler{}
	if err := s.Convert(in, v1, nil); err != nil {
		t.Fatal(err)
	}
	if *v1.Spec.TargetCPUUtilizationPercentage != 60 || *v1.Status.CurrentCPUUtilizationPercentage != 70 ||
		v1.Annotations["note"] != "kept" {
		t.Errorf("as autoscaling/v1: %+v", v1)
	}
	for key, want := range map[string]string{
		metricsAnnotation: `[{"type":"Pods","pods":{"metricName":"m","targetAverageValue":"1",` +
			`"selector":{"matchLabels":{"a":"b"}}}},{"type":"Resource","resource":{"name":"memory",` +
			`"targetAverageValue":"10Mi"}},`,
		behaviorAnnotation: `{"ScaleUp":{"StabilizationWindowSeconds":5,"SelectPolicy":"Min","Policies":[` +
			`{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":"50m"},"ScaleDown":null}`,
		currentMetricsAnnotation: `[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":70,` +
			`"currentAverageValue":"70m"}}]`,
		conditionsAnnotation: `[{"type":"AbleToScale","status":"True","lastTransitionTime":"2026-01-02T03:04:05Z",` +
			`"reason":"ReadyForNewScale","message":"m"}]`,
	} {
		if !strings.HasPrefix(v1.Annotations[key], want) {
			t.Errorf("got %s: %s, want %s", key, v1.Annotations[key], want)
		}
	}
	if err := s.Convert(v1, back, nil); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(in, back) {
		got, _ := yaml.Marshal(back)
		t.Errorf("after both conversions: %s", got)
	}
}

// TestAutoscalerOfV1 checks the defaults, and that invalid annotations are ignored and removed.
func TestAutoscalerOfV1(t *testing.T) {
	t.Parallel()
	for name, annotations := range map[string]map[string]string{
		"without annotations": nil,
		"with invalid annotations": {
			metricsAnnotation: "x", behaviorAnnotation: "[]", conditionsAnnotation: "{}", currentMetricsAnnotation: "1",
		},
	} {
		in, out := &autoscalingv1.HorizontalPodAutoscaler{}, &autoscalingv2.HorizontalPodAutoscaler{}
		in.Annotations = annotations
		if err := New().Convert(in, out, nil); err != nil {
			t.Fatal(err)
		}
		if len(out.Annotations) > 0 || len(out.Spec.Metrics) != 1 || out.Spec.Behavior != nil ||
			*out.Spec.Metrics[0].Resource.Target.AverageUtilization != defaultUtilization {
			t.Errorf("%s: got %+v", name, out)
		}
	}
}

// TestPreferredAutoscalerVersionIsStored: the storage has autoscaling/v2, whose type is the internal one.
func TestPreferredAutoscalerVersionIsStored(t *testing.T) {
	t.Parallel()
	s := New()
	kinds, _, err := s.ObjectKinds(&autoscalingv2.HorizontalPodAutoscaler{})
	if err != nil {
		t.Fatal(err)
	}
	if stored, ok := s.StorageVersioner.KindForGroupVersionKinds(kinds); !ok || stored.Version != "v2" {
		t.Errorf("stored as %v", stored)
	}
	if got := s.PrioritizedVersionsForGroup("autoscaling"); len(got) != 2 || got[0].Version != "v2" {
		t.Errorf("got versions %v", got)
	}
}
