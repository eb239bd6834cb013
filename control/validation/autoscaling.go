package validation

import (
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
)

// Limits of a scaling policy in seconds.
const (
	maxPolicyPeriod        = 1800
	maxStabilizationWindow = 3600
)

var autoscalingRules = map[schema.GroupKind]rules.Rules{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: definition[*autoscalingv2.HorizontalPodAutoscaler]{
		SetDefaults: defaultAutoscaler,
		// Again, because an object of another version has the defaults of this one only after its conversion.
		Prepare:       defaultAutoscaler,
		PrepareUpdate: func(h, _ *autoscalingv2.HorizontalPodAutoscaler) { defaultAutoscaler(h) },
		Validate:      (*validator).autoscaler,
		ValidateCreate: func(k *validator, h *autoscalingv2.HorizontalPodAutoscaler) {
			k.scaleTargetVersion(h)
		},
		ValidateUpdate: func(k *validator, h, old *autoscalingv2.HorizontalPodAutoscaler) {
			target, before := h.Spec.ScaleTargetRef, old.Spec.ScaleTargetRef
			if target.APIVersion != before.APIVersion || target.Kind != before.Kind {
				k.scaleTargetVersion(h)
			}
		},
		ValidateStatus: func(k *validator, h, _ *autoscalingv2.HorizontalPodAutoscaler) {
			k.Counts(map[string]int32{"currentReplicas": h.Status.CurrentReplicas,
				"desiredReplicas": h.Status.DesiredReplicas})
		},
	}.Rules(newValidator),
}

func defaultAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	rules.SetIfNil(&h.Spec.MinReplicas, 1)
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{
			Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{
					Type: autoscalingv2.UtilizationMetricType, AverageUtilization: new(int32(80)),
				},
			},
		}}
	}
	b := h.Spec.Behavior
	if b == nil {
		return
	}
	all := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	b.ScaleUp = defaultScalingRules(b.ScaleUp,
		autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}, all)
	rules.SetIfNil(&b.ScaleUp.StabilizationWindowSeconds, 0)
	// The window for scaling down stays unset: the controller has the default.
	b.ScaleDown = defaultScalingRules(b.ScaleDown, all)
}

func defaultScalingRules(r *autoscalingv2.HPAScalingRules,
	policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	if r == nil {
		r = &autoscalingv2.HPAScalingRules{}
	}
	rules.SetIfNil(&r.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if r.Policies == nil {
		r.Policies = policies
	}
	return r
}

func (k *validator) autoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	s := &h.Spec
	rules.NotNegative(k, spec.Child("minReplicas"), s.MinReplicas)
	most := spec.Child("maxReplicas")
	switch {
	case s.MaxReplicas == 0:
		k.Required(most, "must be set and greater than 0")
	case s.MaxReplicas < 0:
		k.Invalid(most, s.MaxReplicas, "must be greater than or equal to 1")
	}
	if s.MinReplicas != nil && s.MaxReplicas < *s.MinReplicas {
		k.Invalid(most, s.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	k.objectReference(spec.Child("scaleTargetRef"), s.ScaleTargetRef)
	for i := range s.Metrics {
		k.metric(spec.Child("metrics").Index(i), &s.Metrics[i])
	}
	independent := func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	}
	if s.MinReplicas != nil && *s.MinReplicas == 0 && !slices.ContainsFunc(s.Metrics, independent) {
		k.Forbidden(spec.Child("metrics"),
			"must specify at least one Object or External metric to support scaling to zero replicas")
	}
	if s.Behavior != nil {
		k.scalingRules(spec.Child("behavior", "scaleUp"), s.Behavior.ScaleUp)
		k.scalingRules(spec.Child("behavior", "scaleDown"), s.Behavior.ScaleDown)
	}
}

func (k *validator) objectReference(at *field.Path, ref autoscalingv2.CrossVersionObjectReference) {
	segment := func(at *field.Path, value string) {
		if value == "" {
			k.Required(at, "")
			return
		}
		k.InvalidEach(at, value, content.IsPathSegmentName(value))
	}
	segment(at.Child("kind"), ref.Kind)
	segment(at.Child("name"), ref.Name)
}

// scaleTargetVersion validates the API version of the target. Only a ReplicationController has no group.
func (k *validator) scaleTargetVersion(h *autoscalingv2.HorizontalPodAutoscaler) {
	ref, at := h.Spec.ScaleTargetRef, spec.Child("scaleTargetRef", "apiVersion")
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	switch {
	case err != nil:
		k.Invalid(at, ref.APIVersion, "%v", err)
	case version.Group == "" && ref.Kind != "ReplicationController":
		k.Invalid(at, ref.APIVersion, "apiVersion must specify API group")
	}
}

func (k *validator) scalingRules(at *field.Path, r *autoscalingv2.HPAScalingRules) {
	if r == nil {
		return
	}
	if w := r.StabilizationWindowSeconds; w != nil {
		window := at.Child("stabilizationWindowSeconds")
		switch {
		case *w < 0:
			k.Invalid(window, *w, "must be greater than or equal to zero")
		case *w > maxStabilizationWindow:
			k.Invalid(window, *w, "must be less than or equal to %d", maxStabilizationWindow)
		}
	}
	rules.OneOfIfSet(k, at.Child("selectPolicy"), r.SelectPolicy, autoscalingv2.DisabledPolicySelect,
		autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect)
	if len(r.Policies) == 0 {
		k.Required(at.Child("policies"), "must specify at least one Policy")
	}
	for i, p := range r.Policies {
		at := at.Child("policies").Index(i)
		rules.OneOf(k, at.Child("type"), p.Type, autoscalingv2.PercentScalingPolicy, autoscalingv2.PodsScalingPolicy)
		if p.Value <= 0 {
			k.Invalid(at.Child("value"), p.Value, "must be greater than zero")
		}
		if p.PeriodSeconds <= 0 {
			k.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be greater than zero")
		}
		if p.PeriodSeconds > maxPolicyPeriod {
			k.Invalid(at.Child("periodSeconds"), p.PeriodSeconds, "must be less than or equal to %d", maxPolicyPeriod)
		}
	}
	if r.Tolerance != nil && r.Tolerance.Sign() < 0 {
		k.Invalid(at.Child("tolerance"), r.Tolerance.String(), "must be greater than or equal to 0")
	}
}

// metric validates that exactly the source of the type is set, and the source.
func (k *validator) metric(at *field.Path, m *autoscalingv2.MetricSpec) {
	sources := []struct {
		kind autoscalingv2.MetricSourceType
		name string
		set  bool
	}{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil},
	}
	if m.Type == "" {
		k.Required(at.Child("type"), "must specify a metric source type")
	}
	rules.OneOfIfSet(k, at.Child("type"), &m.Type, autoscalingv2.ContainerResourceMetricSourceType,
		autoscalingv2.ExternalMetricSourceType, autoscalingv2.ObjectMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ResourceMetricSourceType)
	for _, s := range sources {
		switch {
		case s.kind == m.Type && !s.set:
			k.Required(at.Child(s.name), "must populate information for the given metric source")
		case s.kind != m.Type && s.set:
			k.Forbidden(at.Child(s.name), "must populate the given metric source only")
		}
	}
	if s := m.Resource; s != nil {
		k.resourceMetric(at.Child("resource"), s.Name, s.Target)
	}
	if s := m.ContainerResource; s != nil {
		at := at.Child("containerResource")
		if s.Container == "" {
			k.Required(at.Child("container"), "must specify a container")
		} else {
			k.InvalidEach(at.Child("container"), s.Container, validation.IsDNS1123Label(s.Container))
		}
		k.resourceMetric(at, s.Name, s.Target)
	}
	if s := m.Pods; s != nil {
		k.metricSource(at.Child("pods"), s.Metric.Name, s.Target)
		if s.Target.AverageValue == nil {
			k.Required(at.Child("pods", "target", "averageValue"), "must specify a positive target averageValue")
		}
	}
	if s := m.Object; s != nil {
		k.objectReference(at.Child("object", "describedObject"), s.DescribedObject)
		k.metricSource(at.Child("object"), s.Metric.Name, s.Target)
		if s.Target.Value == nil && s.Target.AverageValue == nil {
			k.Required(at.Child("object", "target", "averageValue"), "must set either a target value or averageValue")
		}
	}
	if s := m.External; s != nil {
		at := at.Child("external")
		k.metricSource(at, s.Metric.Name, s.Target)
		switch {
		case s.Target.Value == nil && s.Target.AverageValue == nil:
			k.Required(at.Child("target", "averageValue"),
				"must set either a target value for metric or a per-pod target")
		case s.Target.Value != nil && s.Target.AverageValue != nil:
			k.Forbidden(at.Child("target", "value"),
				"may not set both a target value for metric and a per-pod target")
		}
	}
}

func (k *validator) resourceMetric(at *field.Path, name corev1.ResourceName, target autoscalingv2.MetricTarget) {
	if name == "" {
		k.Required(at.Child("name"), "must specify a resource name")
	}
	k.metricTarget(at.Child("target"), target)
	switch {
	case target.AverageUtilization == nil && target.AverageValue == nil:
		k.Required(at.Child("target", "averageUtilization"),
			"must set either a target raw value or a target utilization")
	case target.AverageUtilization != nil && target.AverageValue != nil:
		k.Forbidden(at.Child("target", "averageValue"),
			"may not set both a target raw value and a target utilization")
	}
}

func (k *validator) metricSource(at *field.Path, name string, target autoscalingv2.MetricTarget) {
	if name == "" {
		k.Required(at.Child("metric", "name"), "must specify a metric name")
	} else {
		k.InvalidEach(at.Child("metric", "name"), name, content.IsPathSegmentName(name))
	}
	k.metricTarget(at.Child("target"), target)
}

func (k *validator) metricTarget(at *field.Path, t autoscalingv2.MetricTarget) {
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		if t.Type == "" {
			k.Required(at.Child("type"), "must specify a metric target type")
		}
		k.Invalid(at.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue")
	}
	for name, value := range map[string]*resource.Quantity{"value": t.Value, "averageValue": t.AverageValue} {
		if value != nil && value.Sign() != 1 {
			k.Invalid(at.Child(name), value.String(), "must be positive")
		}
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		k.Invalid(at.Child("averageUtilization"), *t.AverageUtilization, "must be greater than 0")
	}
}
