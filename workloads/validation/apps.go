package validation

import (
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
			ValidateStatus: func(k *validator, r, _ *appsv1.ReplicaSet) {
				k.Counts(map[string]int32{"replicas": r.Status.Replicas, "readyReplicas": r.Status.ReadyReplicas,
					"availableReplicas":    r.Status.AvailableReplicas,
					"fullyLabeledReplicas": r.Status.FullyLabeledReplicas})
				k.NotMoreThan("fullyLabeledReplicas", r.Status.FullyLabeledReplicas, "status.replicas",
					r.Status.Replicas)
				k.NotMoreThan("readyReplicas", r.Status.ReadyReplicas, "status.replicas", r.Status.Replicas)
				k.NotMoreThan("availableReplicas", r.Status.AvailableReplicas, "readyReplicas", r.Status.ReadyReplicas)
			}}.Rules(newValidator), true
	case "DaemonSet":
		return definition[*appsv1.DaemonSet]{SetDefaults: defaultDaemonSet, Validate: (*validator).daemonSet,
			ValidateUpdate: func(k *validator, d, old *appsv1.DaemonSet) {
				k.Immutable(spec().Child("selector"), d.Spec.Selector, old.Spec.Selector)
			},
			ValidateStatus: func(k *validator, d, _ *appsv1.DaemonSet) {
				s := d.Status
				k.Counts(
					map[string]int32{"currentNumberScheduled": s.CurrentNumberScheduled,
						"numberMisscheduled":     s.NumberMisscheduled,
						"desiredNumberScheduled": s.DesiredNumberScheduled, "numberReady": s.NumberReady,
						"updatedNumberScheduled": s.UpdatedNumberScheduled, "numberAvailable": s.NumberAvailable,
						"numberUnavailable": s.NumberUnavailable},
				)
			}}.Rules(newValidator), true
	case "StatefulSet":
		return definition[*appsv1.StatefulSet]{
			SetDefaults:    defaultStatefulSet,
			Validate:       (*validator).statefulSet,
			ValidateUpdate: (*validator).statefulSetChange,
			ValidateStatus: func(k *validator, s, _ *appsv1.StatefulSet) {
				k.Counts(map[string]int32{"replicas": s.Status.Replicas, "readyReplicas": s.Status.ReadyReplicas,
					"currentReplicas": s.Status.CurrentReplicas, "updatedReplicas": s.Status.UpdatedReplicas})
			},
		}.Rules(newValidator), true
	case "ControllerRevision":
		return definition[*appsv1.ControllerRevision]{
			Validate: func(k *validator, r *appsv1.ControllerRevision) {
				if r.Data.Raw == nil && r.Data.Object == nil {
					k.Required(field.NewPath("data"), "data is mandatory")
				}
				rules.NotNegative(k, field.NewPath("revision"), &r.Revision)
			},
			ValidateUpdate: func(k *validator, r, old *appsv1.ControllerRevision) {
				k.Immutable(field.NewPath("data"), r.Data, old.Data)
			}}.Rules(newValidator), true
	}
	return rules.Rules{}, false
}

// workload validates the selector and the template of a workload.
func (k *validator) workload(what string, s *metav1.LabelSelector, t *corev1.PodTemplateSpec) {
	at, template := spec().Child("selector"), spec().Child("template")
	if s == nil {
		k.Required(at, "")
	} else {
		k.Selector(at, s)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			k.Invalid(at, s, "empty selector is invalid for %s", what)
		}
		if parsed, err := metav1.LabelSelectorAsSelector(s); err != nil {
			k.Invalid(at, s, "invalid label selector")
		} else if !parsed.Empty() && !parsed.Matches(labels.Set(t.Labels)) {
			k.Invalid(template.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
		}
	}
	k.AddAll(podspec.ValidateTemplate(t, template))
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		k.Add(
			field.NotSupported(template.Child("spec", "restartPolicy"), p,
				[]corev1.RestartPolicy{corev1.RestartPolicyAlways}),
		)
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		k.Forbidden(template.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+what+
			" is not Supported")
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
	k.workload("deployment", s.Selector, &s.Template)
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
		k.rolling(at.Child("rollingUpdate"), s.Strategy.RollingUpdate.MaxUnavailable, s.Strategy.RollingUpdate.MaxSurge)
	default:
		k.Add(field.NotSupported(at.Child("type"), s.Strategy.Type,
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
	if rules.IsZero(unavailable) && rules.IsZero(surge) {
		k.Invalid(at.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0")
	}
}

func (k *validator) deploymentStatus(d, _ *appsv1.Deployment) {
	s := d.Status
	k.Counts(
		map[string]int32{"replicas": s.Replicas, "updatedReplicas": s.UpdatedReplicas, "readyReplicas": s.ReadyReplicas,
			"availableReplicas": s.AvailableReplicas, "unavailableReplicas": s.UnavailableReplicas},
	)
	k.NotMoreThan("updatedReplicas", s.UpdatedReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "readyReplicas", s.ReadyReplicas)
}

func (k *validator) replicaSet(r *appsv1.ReplicaSet) {
	rules.NotNegative(k, spec().Child("replicas"), r.Spec.Replicas)
	rules.NotNegative(k, spec().Child("minReadySeconds"), &r.Spec.MinReadySeconds)
	k.workload("ReplicaSet", r.Spec.Selector, &r.Spec.Template)
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

func (k *validator) daemonSet(d *appsv1.DaemonSet) {
	k.workload("DaemonSet", d.Spec.Selector, &d.Spec.Template)
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
		k.rolling(at, u.RollingUpdate.MaxUnavailable, u.RollingUpdate.MaxSurge)
		k.AtMost100Percent(at.Child("maxSurge"), u.RollingUpdate.MaxSurge)
		if !rules.IsZero(u.RollingUpdate.MaxUnavailable) && !rules.IsZero(u.RollingUpdate.MaxSurge) {
			k.Invalid(at.Child("maxSurge"), u.RollingUpdate.MaxSurge, "may not be set when maxUnavailable is non-zero")
		}
	default:
		k.Add(field.NotSupported(
			at.Child("type"),
			u.Type,
			[]appsv1.DaemonSetUpdateStrategyType{
				appsv1.OnDeleteDaemonSetStrategyType,
				appsv1.RollingUpdateDaemonSetStrategyType,
			},
		))
	}
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	rules.SetIfZero(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	u := &s.Spec.UpdateStrategy
	if u.Type == "" {
		u.Type = appsv1.RollingUpdateStatefulSetStrategyType
		rules.SetIfNil(&u.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if u.Type == appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
		rules.SetIfNil(&u.RollingUpdate.Partition, 0)
		rules.SetIfNil(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
	}
	rules.SetIfNil(&s.Spec.PersistentVolumeClaimRetentionPolicy,
		appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	rules.SetIfZero(
		&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	)
	rules.SetIfZero(
		&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	)
	rules.SetIfNil(&s.Spec.Replicas, 1)
	rules.SetIfNil(&s.Spec.RevisionHistoryLimit, 10)
	podspec.SetTemplateDefaults(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		podspec.SetClaimDefaults(&s.Spec.VolumeClaimTemplates[i])
	}
}

func (k *validator) statefulSet(s *appsv1.StatefulSet) {
	rules.OneOf(
		k,
		spec().Child("podManagementPolicy"),
		s.Spec.PodManagementPolicy,
		appsv1.OrderedReadyPodManagement,
		appsv1.ParallelPodManagement,
	)
	at := spec().Child("updateStrategy")
	switch u := s.Spec.UpdateStrategy; u.Type {
	case "":
		k.Required(at, "")
	case appsv1.OnDeleteStatefulSetStrategyType:
		if u.RollingUpdate != nil {
			k.Invalid(
				at.Child("rollingUpdate"),
				u.RollingUpdate,
				"only allowed for updateStrategy '%s'",
				appsv1.RollingUpdateStatefulSetStrategyType,
			)
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if u.RollingUpdate != nil {
			rules.NotNegative(k, at.Child("rollingUpdate", "partition"), u.RollingUpdate.Partition)
			k.PodsOrPercent(at.Child("rollingUpdate", "maxUnavailable"), u.RollingUpdate.MaxUnavailable)
			k.AtMost100Percent(at.Child("rollingUpdate", "maxUnavailable"), u.RollingUpdate.MaxUnavailable)
		}
	default:
		k.Invalid(
			at,
			u.Type,
			"must be '%s' or '%s'",
			appsv1.RollingUpdateStatefulSetStrategyType,
			appsv1.OnDeleteStatefulSetStrategyType,
		)
	}
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := spec().Child("persistentVolumeClaimRetentionPolicy")
		rules.OneOf(
			k,
			at.Child("whenDeleted"),
			p.WhenDeleted,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		)
		rules.OneOf(
			k,
			at.Child("whenScaled"),
			p.WhenScaled,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		)
	}
	rules.NotNegative(k, spec().Child("replicas"), s.Spec.Replicas)
	rules.NotNegative(k, spec().Child("minReadySeconds"), &s.Spec.MinReadySeconds)
	rules.NotNegative(k, spec().Child("revisionHistoryLimit"), s.Spec.RevisionHistoryLimit)
	if o := s.Spec.Ordinals; o != nil {
		rules.NotNegative(k, spec().Child("ordinals", "start"), &o.Start)
	}
	if n := s.Spec.ServiceName; n != "" {
		k.InvalidEach(spec().Child("serviceName"), n, validation.NameIsDNSSubdomain(n, false))
	}
	// The claim templates become volumes of the pods: validate the template with these volumes.
	template := s.Spec.Template.DeepCopy()
	for _, c := range s.Spec.VolumeClaimTemplates {
		template.Spec.Volumes = append(template.Spec.Volumes,
			corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}})
	}
	k.workload("statefulset", s.Spec.Selector, template)
}

func (k *validator) statefulSetChange(s, old *appsv1.StatefulSet) {
	rest := s.Spec.DeepCopy()
	oldSpec := old.Spec
	rest.Replicas, rest.Ordinals, rest.Template, rest.UpdateStrategy = oldSpec.Replicas, oldSpec.Ordinals,
		oldSpec.Template, oldSpec.UpdateStrategy
	rest.RevisionHistoryLimit, rest.MinReadySeconds = oldSpec.RevisionHistoryLimit, oldSpec.MinReadySeconds
	rest.PersistentVolumeClaimRetentionPolicy = oldSpec.PersistentVolumeClaimRetentionPolicy
	if len(podspec.Differences("spec", oldSpec, *rest)) > 0 {
		k.Forbidden(
			spec(),
			"updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "+
				"'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
		)
	}
}
