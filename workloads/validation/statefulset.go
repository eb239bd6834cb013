package validation

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"berth/internal/rules"
	"berth/podspec"
)

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
		c := &s.Spec.VolumeClaimTemplates[i]
		rules.SetIfZero(&c.APIVersion, "v1")
		rules.SetIfZero(&c.Kind, "PersistentVolumeClaim")
		podspec.SetClaimDefaults(c)
	}
}

// statefulSet validates all of a StatefulSet except for the template, which depends on the old version. A negative
// revisionHistoryLimit keeps all revisions.
func (k *validator) statefulSet(s *appsv1.StatefulSet) {
	switch p := s.Spec.PodManagementPolicy; p {
	case "":
		k.Required(spec().Child("podManagementPolicy"), "")
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		k.Invalid(spec().Child("podManagementPolicy"), p, "must be '%s' or '%s'", appsv1.OrderedReadyPodManagement,
			appsv1.ParallelPodManagement)
	}
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
			if n := u.RollingUpdate.MaxUnavailable; n != nil && rules.IsZero(n) {
				k.Invalid(at.Child("rollingUpdate", "maxUnavailable"), n, "cannot be 0")
			}
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
	if o := s.Spec.Ordinals; o != nil {
		rules.NotNegative(k, spec().Child("ordinals", "start"), &o.Start)
	}
	k.selectsTemplate("statefulset", s.Spec.Selector, &s.Spec.Template)
	k.runsForever("StatefulSet", &s.Spec.Template)
}

// newStatefulSet validates what only an old StatefulSet may have. The service name and the claim templates are
// immutable, so that invalid ones of old StatefulSets must be accepted again.
func (k *validator) newStatefulSet(s *appsv1.StatefulSet) {
	if n := s.Spec.ServiceName; n != "" {
		k.InvalidEach(spec().Child("serviceName"), n, utilvalidation.IsDNS1123Label(n))
	}
	for i := range s.Spec.VolumeClaimTemplates {
		k.AddAll(podspec.ValidateClaimSpec(&s.Spec.VolumeClaimTemplates[i].Spec,
			spec().Child("volumeClaimTemplates").Index(i).Child("spec")))
	}
	k.statefulSetTemplate(s)
}

// statefulSetTemplate validates the template without what each pod gets from the controller: the hostname, the
// subdomain, and the claims as volumes, which replace volumes with the same name.
func (k *validator) statefulSetTemplate(s *appsv1.StatefulSet) {
	t := s.Spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	for _, c := range s.Spec.VolumeClaimTemplates {
		t.Spec.Volumes = slices.DeleteFunc(t.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == c.Name })
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: c.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.Name}}})
	}
	if _, err := metav1.LabelSelectorAsSelector(s.Spec.Selector); err != nil {
		return // the selector is invalid
	}
	at := spec().Child("template")
	k.AddAll(podspec.ValidateTemplate(t, at))
	// Kubernetes repeats these errors with paths that lack "metadata".
	k.AddAll(metavalidation.ValidateLabels(t.Labels, at.Child("labels")))
	k.AddAll(validation.ValidateAnnotations(t.Annotations, at.Child("annotations")))
}

func (k *validator) statefulSetChange(s, old *appsv1.StatefulSet) {
	k.Immutable(spec().Child("selector"), s.Spec.Selector, old.Spec.Selector)
	k.Immutable(spec().Child("volumeClaimTemplates"), s.Spec.VolumeClaimTemplates, old.Spec.VolumeClaimTemplates)
	k.Immutable(spec().Child("serviceName"), s.Spec.ServiceName, old.Spec.ServiceName)
	k.Immutable(spec().Child("podManagementPolicy"), s.Spec.PodManagementPolicy, old.Spec.PodManagementPolicy)
	// A StatefulSet that an older version accepted can still be changed.
	before := newValidator()
	before.statefulSet(old)
	before.statefulSetTemplate(old)
	if len(before.Errors()) == 0 {
		k.statefulSetTemplate(s)
	}
}
