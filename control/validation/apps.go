package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

func apps(kind string) schema.GroupKind { return schema.GroupKind{Group: "apps", Kind: kind} }

var appsRules = map[schema.GroupKind]Rules{
	apps("Deployment"): definition[*appsv1.Deployment]{setDefaults: defaultDeployment,
		validate: (*validator).deployment,
		validateUpdate: func(k *validator, d, old *appsv1.Deployment) {
			k.immutable(spec.Child("selector"), d.Spec.Selector, old.Spec.Selector)
		},
		validateStatus: (*validator).deploymentStatus}.rules(),
	apps("ReplicaSet"): definition[*appsv1.ReplicaSet]{
		setDefaults: func(r *appsv1.ReplicaSet) {
			setIfNil(&r.Spec.Replicas, 1)
			podspec.SetTemplateDefaults(&r.Spec.Template)
		},
		validate: (*validator).replicaSet,
		validateUpdate: func(k *validator, r, old *appsv1.ReplicaSet) {
			k.immutable(spec.Child("selector"), r.Spec.Selector, old.Spec.Selector)
		},
		validateStatus: func(k *validator, r, _ *appsv1.ReplicaSet) {
			k.counts(map[string]int32{"replicas": r.Status.Replicas, "readyReplicas": r.Status.ReadyReplicas,
				"availableReplicas": r.Status.AvailableReplicas, "fullyLabeledReplicas": r.Status.FullyLabeledReplicas})
			k.notMoreThan("fullyLabeledReplicas", r.Status.FullyLabeledReplicas, "status.replicas", r.Status.Replicas)
			k.notMoreThan("readyReplicas", r.Status.ReadyReplicas, "status.replicas", r.Status.Replicas)
			k.notMoreThan("availableReplicas", r.Status.AvailableReplicas, "readyReplicas", r.Status.ReadyReplicas)
		}}.rules(),
	apps("DaemonSet"): definition[*appsv1.DaemonSet]{setDefaults: defaultDaemonSet, validate: (*validator).daemonSet,
		validateUpdate: func(k *validator, d, old *appsv1.DaemonSet) {
			k.immutable(spec.Child("selector"), d.Spec.Selector, old.Spec.Selector)
		},
		validateStatus: func(k *validator, d, _ *appsv1.DaemonSet) {
			s := d.Status
			k.counts(
				map[string]int32{"currentNumberScheduled": s.CurrentNumberScheduled,
					"numberMisscheduled":     s.NumberMisscheduled,
					"desiredNumberScheduled": s.DesiredNumberScheduled, "numberReady": s.NumberReady,
					"updatedNumberScheduled": s.UpdatedNumberScheduled, "numberAvailable": s.NumberAvailable,
					"numberUnavailable": s.NumberUnavailable},
			)
		}}.rules(),
	apps("StatefulSet"): definition[*appsv1.StatefulSet]{
		setDefaults:    defaultStatefulSet,
		validate:       (*validator).statefulSet,
		validateUpdate: (*validator).statefulSetChange,
		validateStatus: func(k *validator, s, _ *appsv1.StatefulSet) {
			k.counts(map[string]int32{"replicas": s.Status.Replicas, "readyReplicas": s.Status.ReadyReplicas,
				"currentReplicas": s.Status.CurrentReplicas, "updatedReplicas": s.Status.UpdatedReplicas})
		},
	}.rules(),
	apps("ControllerRevision"): definition[*appsv1.ControllerRevision]{
		validate: func(k *validator, r *appsv1.ControllerRevision) {
			if r.Data.Raw == nil && r.Data.Object == nil {
				k.required(field.NewPath("data"), "data is mandatory")
			}
			notNegative(k, field.NewPath("revision"), &r.Revision)
		},
		validateUpdate: func(k *validator, r, old *appsv1.ControllerRevision) {
			k.immutable(field.NewPath("data"), r.Data, old.Data)
		}}.rules(),
}

// workload validates the selector and the template of a workload.
func (k *validator) workload(what string, s *metav1.LabelSelector, t *corev1.PodTemplateSpec) {
	at, template := spec.Child("selector"), spec.Child("template")
	if s == nil {
		k.required(at, "")
	} else {
		k.selector(at, s)
		if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
			k.invalid(at, s, "empty selector is invalid for %s", what)
		}
		if parsed, err := metav1.LabelSelectorAsSelector(s); err != nil {
			k.invalid(at, s, "invalid label selector")
		} else if !parsed.Empty() && !parsed.Matches(labels.Set(t.Labels)) {
			k.invalid(template.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
		}
	}
	k.addAll(podspec.ValidateTemplate(t, template))
	if p := t.Spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		k.add(
			field.NotSupported(template.Child("spec", "restartPolicy"), p,
				[]corev1.RestartPolicy{corev1.RestartPolicyAlways}),
		)
	}
	if t.Spec.ActiveDeadlineSeconds != nil {
		k.forbidden(template.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in "+what+
			" is not Supported")
	}
}

func (k *validator) counts(of map[string]int32) {
	for name, n := range of {
		notNegative(k, status.Child(name), &n)
	}
}

func (k *validator) notMoreThan(name string, n int32, other string, most int32) {
	if n > most {
		k.invalid(status.Child(name), n, "cannot be greater than %s", other)
	}
}

func defaultDeployment(d *appsv1.Deployment) {
	s := &d.Spec
	setIfNil(&s.Replicas, 1)
	setIfNil(&s.RevisionHistoryLimit, 10)
	setIfNil(&s.ProgressDeadlineSeconds, 600)
	setIfZero(&s.Strategy.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		setIfNil(&s.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		setIfNil(&s.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		setIfNil(&s.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	podspec.SetTemplateDefaults(&s.Template)
}

func (k *validator) deployment(d *appsv1.Deployment) {
	s := &d.Spec
	notNegative(k, spec.Child("replicas"), s.Replicas)
	k.workload("deployment", s.Selector, &s.Template)
	at := spec.Child("strategy")
	switch s.Strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.Strategy.RollingUpdate != nil {
			k.forbidden(at.Child("rollingUpdate"), "may not be specified when strategy `type` is 'Recreate'")
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.Strategy.RollingUpdate == nil {
			k.required(at.Child("rollingUpdate"), "this should be defaulted and never be nil")
			break
		}
		k.rolling(at.Child("rollingUpdate"), s.Strategy.RollingUpdate.MaxUnavailable, s.Strategy.RollingUpdate.MaxSurge)
	default:
		k.add(field.NotSupported(at.Child("type"), s.Strategy.Type,
			[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType,
				appsv1.RollingUpdateDeploymentStrategyType}))
	}
	notNegative(k, spec.Child("minReadySeconds"), &s.MinReadySeconds)
	notNegative(k, spec.Child("revisionHistoryLimit"), s.RevisionHistoryLimit)
	if p := s.ProgressDeadlineSeconds; p != nil {
		notNegative(k, spec.Child("progressDeadlineSeconds"), p)
		if *p <= s.MinReadySeconds {
			k.invalid(spec.Child("progressDeadlineSeconds"), *p, "must be greater than minReadySeconds")
		}
	}
}

// rolling validates maxUnavailable and maxSurge.
func (k *validator) rolling(at *field.Path, unavailable, surge *intstr.IntOrString) {
	k.podsOrPercent(at.Child("maxUnavailable"), unavailable)
	k.podsOrPercent(at.Child("maxSurge"), surge)
	k.atMost100Percent(at.Child("maxUnavailable"), unavailable)
	if isZero(unavailable) && isZero(surge) {
		k.invalid(at.Child("maxUnavailable"), unavailable, "may not be 0 when `maxSurge` is 0")
	}
}

func (k *validator) deploymentStatus(d, _ *appsv1.Deployment) {
	s := d.Status
	k.counts(
		map[string]int32{"replicas": s.Replicas, "updatedReplicas": s.UpdatedReplicas, "readyReplicas": s.ReadyReplicas,
			"availableReplicas": s.AvailableReplicas, "unavailableReplicas": s.UnavailableReplicas},
	)
	k.notMoreThan("updatedReplicas", s.UpdatedReplicas, "status.replicas", s.Replicas)
	k.notMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.notMoreThan("availableReplicas", s.AvailableReplicas, "readyReplicas", s.ReadyReplicas)
}

func (k *validator) replicaSet(r *appsv1.ReplicaSet) {
	notNegative(k, spec.Child("replicas"), r.Spec.Replicas)
	notNegative(k, spec.Child("minReadySeconds"), &r.Spec.MinReadySeconds)
	k.workload("ReplicaSet", r.Spec.Selector, &r.Spec.Template)
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	u := &d.Spec.UpdateStrategy
	setIfZero(&u.Type, appsv1.RollingUpdateDaemonSetStrategyType)
	if u.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		setIfNil(&u.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		setIfNil(&u.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		setIfNil(&u.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	setIfNil(&d.Spec.RevisionHistoryLimit, 10)
	podspec.SetTemplateDefaults(&d.Spec.Template)
}

func (k *validator) daemonSet(d *appsv1.DaemonSet) {
	k.workload("DaemonSet", d.Spec.Selector, &d.Spec.Template)
	notNegative(k, spec.Child("minReadySeconds"), &d.Spec.MinReadySeconds)
	notNegative(k, spec.Child("revisionHistoryLimit"), d.Spec.RevisionHistoryLimit)
	at := spec.Child("updateStrategy")
	switch u := d.Spec.UpdateStrategy; u.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		at = at.Child("rollingUpdate")
		if u.RollingUpdate == nil {
			k.required(at, "")
			return
		}
		k.rolling(at, u.RollingUpdate.MaxUnavailable, u.RollingUpdate.MaxSurge)
		k.atMost100Percent(at.Child("maxSurge"), u.RollingUpdate.MaxSurge)
		if !isZero(u.RollingUpdate.MaxUnavailable) && !isZero(u.RollingUpdate.MaxSurge) {
			k.invalid(at.Child("maxSurge"), u.RollingUpdate.MaxSurge, "may not be set when maxUnavailable is non-zero")
		}
	default:
		k.add(field.NotSupported(
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
	setIfZero(&s.Spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	u := &s.Spec.UpdateStrategy
	if u.Type == "" {
		u.Type = appsv1.RollingUpdateStatefulSetStrategyType
		setIfNil(&u.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if u.Type == appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
		setIfNil(&u.RollingUpdate.Partition, 0)
	}
	setIfNil(&s.Spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	setIfZero(
		&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	)
	setIfZero(
		&s.Spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	)
	setIfNil(&s.Spec.Replicas, 1)
	setIfNil(&s.Spec.RevisionHistoryLimit, 10)
	podspec.SetTemplateDefaults(&s.Spec.Template)
	for i := range s.Spec.VolumeClaimTemplates {
		defaultClaim(&s.Spec.VolumeClaimTemplates[i])
	}
}

func (k *validator) statefulSet(s *appsv1.StatefulSet) {
	oneOf(
		k,
		spec.Child("podManagementPolicy"),
		s.Spec.PodManagementPolicy,
		appsv1.OrderedReadyPodManagement,
		appsv1.ParallelPodManagement,
	)
	at := spec.Child("updateStrategy")
	switch u := s.Spec.UpdateStrategy; u.Type {
	case "":
		k.required(at, "")
	case appsv1.OnDeleteStatefulSetStrategyType:
		if u.RollingUpdate != nil {
			k.invalid(
				at.Child("rollingUpdate"),
				u.RollingUpdate,
				"only allowed for updateStrategy '%s'",
				appsv1.RollingUpdateStatefulSetStrategyType,
			)
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if u.RollingUpdate != nil {
			notNegative(k, at.Child("rollingUpdate", "partition"), u.RollingUpdate.Partition)
			k.podsOrPercent(at.Child("rollingUpdate", "maxUnavailable"), u.RollingUpdate.MaxUnavailable)
			k.atMost100Percent(at.Child("rollingUpdate", "maxUnavailable"), u.RollingUpdate.MaxUnavailable)
		}
	default:
		k.invalid(
			at,
			u.Type,
			"must be '%s' or '%s'",
			appsv1.RollingUpdateStatefulSetStrategyType,
			appsv1.OnDeleteStatefulSetStrategyType,
		)
	}
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := spec.Child("persistentVolumeClaimRetentionPolicy")
		oneOf(
			k,
			at.Child("whenDeleted"),
			p.WhenDeleted,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		)
		oneOf(
			k,
			at.Child("whenScaled"),
			p.WhenScaled,
			appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
			appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		)
	}
	notNegative(k, spec.Child("replicas"), s.Spec.Replicas)
	notNegative(k, spec.Child("minReadySeconds"), &s.Spec.MinReadySeconds)
	notNegative(k, spec.Child("revisionHistoryLimit"), s.Spec.RevisionHistoryLimit)
	if o := s.Spec.Ordinals; o != nil {
		notNegative(k, spec.Child("ordinals", "start"), &o.Start)
	}
	if n := s.Spec.ServiceName; n != "" {
		k.invalidEach(spec.Child("serviceName"), n, validation.NameIsDNSSubdomain(n, false))
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
		k.forbidden(
			spec,
			"updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "+
				"'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
		)
	}
}
