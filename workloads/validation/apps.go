package validation

import (
	"encoding/json"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/internal/rules"
	"berth/podspec"
)

// appsRules returns the rules of the group apps. Functions instead of variables cost the agent nothing until a file
// defines a workload.
func appsRules(kind string) (rules.Rules, bool) {
	switch kind {
	case "Deployment":
		return definition[*appsv1.Deployment]{SetDefaults: defaultDeployment,
			Validate: (*validator).deployment,
			ValidateUpdate: func(k *validator, d, old *appsv1.Deployment) {
				k.Immutable(spec().Child("selector"), d.Spec.Selector, old.Spec.Selector)
			},
			ValidateStatus: (*validator).deploymentStatus}.Rules(newValidator), true
	case "ReplicaSet":
		return definition[*appsv1.ReplicaSet]{
			SetDefaults: func(r *appsv1.ReplicaSet) {
				rules.SetIfNil(&r.Spec.Replicas, 1)
				podspec.SetTemplateDefaults(&r.Spec.Template)
			},
			Validate: (*validator).replicaSet,
			ValidateUpdate: func(k *validator, r, old *appsv1.ReplicaSet) {
				k.Immutable(spec().Child("selector"), r.Spec.Selector, old.Spec.Selector)
			},
			ValidateStatus: (*validator).replicaSetStatus}.Rules(newValidator), true
	case "DaemonSet":
		return definition[*appsv1.DaemonSet]{SetDefaults: defaultDaemonSet, Validate: (*validator).daemonSet,
			ValidateUpdate: func(k *validator, d, old *appsv1.DaemonSet) {
				k.Immutable(spec().Child("selector"), d.Spec.Selector, old.Spec.Selector)
			},
			ValidateStatus: (*validator).daemonSetStatus}.Rules(newValidator), true
	case "StatefulSet":
		return definition[*appsv1.StatefulSet]{
			ValidateNewName: validation.NameIsDNSLabel, // the pods have it in their hostnames
			SetDefaults:     defaultStatefulSet,
			Validate:        (*validator).statefulSet,
			ValidateCreate:  (*validator).newStatefulSet,
			ValidateUpdate:  (*validator).statefulSetChange,
			ValidateStatus:  (*validator).statefulSetStatus,
		}.Rules(newValidator), true
	case "ControllerRevision":
		return definition[*appsv1.ControllerRevision]{
			Validate: func(k *validator, r *appsv1.ControllerRevision) {
				rules.NotNegative(k, field.NewPath("revision"), &r.Revision)
			},
			ValidateCreate: (*validator).revisionData,
			ValidateUpdate: func(k *validator, r, old *appsv1.ControllerRevision) {
				k.Immutable(field.NewPath("data"), r.Data, old.Data)
			}}.Rules(newValidator), true
	}
	return rules.Rules{}, false
}

// revisionData validates that the data of a revision is an object.
func (k *validator) revisionData(r *appsv1.ControllerRevision) {
	if r.Data.Object != nil {
		return
	}
	at := field.NewPath("data")
	var data any
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil && len(r.Data.Raw) > 0 {
		k.Invalid(at, "<value omitted>", "error parsing data: %v", err)
	} else if data == nil {
		k.Required(at, "data is mandatory")
	} else if _, ok := data.(map[string]any); !ok {
		k.Required(at, "data must be a valid JSON object")
	}
}

// workload validates the selector and the template of a workload. selects and runs are its kind in messages about the
// selector and the template. As upstream, it does not validate the template if the selector is invalid.
func (k *validator) workload(selects, runs string, s *metav1.LabelSelector, t *corev1.PodTemplateSpec) {
	if !k.selectsTemplate(selects, s, t) {
		return
	}
	k.AddAll(podspec.ValidateTemplate(t, spec().Child("template")))
	k.runsForever(runs, t)
}

// selectsTemplate validates a selector, which must match the template. It returns false if it is not a selector.
func (k *validator) selectsTemplate(kind string, s *metav1.LabelSelector, t *corev1.PodTemplateSpec) bool {
	at := spec().Child("selector")
	if s == nil {
		k.Required(at, "")
	} else {
		k.Selector(at, s)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			k.Invalid(at, s, "empty selector is invalid for %s", kind)
		}
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		k.Invalid(at, s, "invalid label selector")
		return false
	}
	if !parsed.Empty() && !parsed.Matches(labels.Set(t.Labels)) {
		k.Invalid(spec().Child("template", "metadata", "labels"), t.Labels,
			"`selector` does not match template `labels`")
	}
	return true
}

// runsForever validates that the pods of a template do not end.
func (k *validator) runsForever(kind string, t *corev1.PodTemplateSpec) {
	at := spec().Child("template", "spec")
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		k.Add(field.NotSupported(at.Child("restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		k.Forbidden(at.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported")
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	s := &d.Spec
	rules.SetIfNil(&s.Replicas, 1)
	rules.SetIfNil(&s.RevisionHistoryLimit, 10)
	rules.SetIfNil(&s.ProgressDeadlineSeconds, 600)
	rules.SetIfZero(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		rules.SetIfNil(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		rules.SetIfNil(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		rules.SetIfNil(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	podspec.SetTemplateDefaults(&s.Template)
}

func (k *validator) deployment(d *appsv1.Deployment) {
	s := &d.Spec
	rules.NotNegative(k, spec().Child("replicas"), s.Replicas)
	k.workload("deployment", "ReplicaSet", s.Selector, &s.Template)
	at := spec().Child("strategy")
	switch s.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.Strategy.RollingUpdate != nil {
			k.Forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'")
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.Strategy.RollingUpdate == nil {
			k.Required(at.Child("rollingUpdate"), "this should be defaulted and never be nil")
			break
		}
		at = at.Child("rollingUpdate")
		unavailable, surge := s.Strategy.RollingUpdate.MaxUnavailable, s.Strategy.RollingUpdate.MaxSurge
		k.rolling(at, unavailable, surge)
		if rules.IsZero(unavailable) && rules.IsZero(surge) {
			k.Invalid(at.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0")
		}
	default:
		k.Add(field.NotSupported(at, s.Strategy.Type,
			[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType,
				appsv1.RollingUpdateDeploymentStrategyType}))
	}
	rules.NotNegative(k, spec().Child("minReadySeconds"), &s.MinReadySeconds)
	rules.NotNegative(k, spec().Child("revisionHistoryLimit"), s.RevisionHistoryLimit)
	if p := s.ProgressDeadlineSeconds; p != nil {
		rules.NotNegative(k, spec().Child("progressDeadlineSeconds"), p)
		if *p <= s.MinReadySeconds {
			k.Invalid(spec().Child("progressDeadlineSeconds"), *p, "must be greater than minReadySeconds")
		}
	}
}

// rolling validates maxUnavailable and maxSurge.
func (k *validator) rolling(at *field.Path, unavailable, surge *intstr.IntOrString) {
	k.PodsOrPercent(at.Child("maxUnavailable"), unavailable)
	k.PodsOrPercent(at.Child("maxSurge"), surge)
	k.AtMost100Percent(at.Child("maxUnavailable"), unavailable)
}

func (k *validator) replicaSet(r *appsv1.ReplicaSet) {
	rules.NotNegative(k, spec().Child("replicas"), r.Spec.Replicas)
	rules.NotNegative(k, spec().Child("minReadySeconds"), &r.Spec.MinReadySeconds)
	k.workload("deployment", "ReplicaSet", r.Spec.Selector, &r.Spec.Template)
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	u := &d.Spec.UpdateStrategy
	rules.SetIfZero(&u.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if u.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		rules.SetIfNil(&u.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		rules.SetIfNil(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		rules.SetIfNil(&u.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	rules.SetIfNil(&d.Spec.RevisionHistoryLimit, 10)
	podspec.SetTemplateDefaults(&d.Spec.Template)
}

// daemonSetSelector validates a selector, which must match the template. Without a selector, no template matches.
func (k *validator) daemonSetSelector(d *appsv1.DaemonSet) {
	at, s := spec().Child("selector"), d.Spec.Selector
	k.Selector(at, s)
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err == nil && !parsed.Matches(labels.Set(d.Spec.Template.Labels)) {
		k.Invalid(spec().Child("template", "metadata", "labels"), d.Spec.Template.Labels,
			"`selector` does not match template `labels`")
	}
	if s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		k.Invalid(at, s, "empty selector is invalid for daemonset")
	}
}

func (k *validator) daemonSet(d *appsv1.DaemonSet) {
	k.daemonSetSelector(d)
	k.AddAll(podspec.ValidateTemplate(&d.Spec.Template, spec().Child("template")))
	k.runsForever("DaemonSet", &d.Spec.Template)
	if text, set := d.Annotations[appsv1.DeprecatedTemplateGeneration]; set {
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			k.Invalid(rules.Metadata().Child("annotations").Key(appsv1.DeprecatedTemplateGeneration), text,
				"must be a number")
		}
	}
	rules.NotNegative(k, spec().Child("minReadySeconds"), &d.Spec.MinReadySeconds)
	rules.NotNegative(k, spec().Child("revisionHistoryLimit"), d.Spec.RevisionHistoryLimit)
	at := spec().Child("updateStrategy")
	switch u := d.Spec.UpdateStrategy; u.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		at = at.Child("rollingUpdate")
		if u.RollingUpdate == nil {
			k.Required(at, "")
			return
		}
		unavailable, surge := u.RollingUpdate.MaxUnavailable, u.RollingUpdate.MaxSurge
		k.rolling(at, unavailable, surge)
		k.AtMost100Percent(at.Child("maxSurge"), surge)
		switch {
		case rules.IsZero(unavailable) && rules.IsZero(surge):
			k.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0")
		case !rules.IsZero(unavailable) && !rules.IsZero(surge):
			k.Invalid(at.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero")
		}
	default:
		k.Add(field.NotSupported(
			at,
			u.Type,
			[]appsv1.DaemonSetUpdateStrategyType{
				appsv1.OnDeleteDaemonSetStrategyType,
				appsv1.RollingUpdateDaemonSetStrategyType,
			},
		))
	}
}
