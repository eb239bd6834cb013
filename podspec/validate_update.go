package podspec

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const immutableFieldsMessage = "pod updates may not change fields other than " +
	"`spec.containers[*].image`,`spec.initContainers[*].image`," +
	"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations)," +
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"

// ValidateUpdate returns every error that forbids an update of a pod: errors of the new pod, and
// changes of immutable fields.
func ValidateUpdate(pod, old *corev1.Pod) field.ErrorList {
	k := &validator{pod: pod, spec: &pod.Spec, stored: true}
	k.errs = ValidateStored(pod)
	k.changedMetadata(pod, old)
	spec := field.NewPath("spec")
	same := k.sameContainers(spec.Child("containers"), pod.Spec.Containers, old.Spec.Containers)
	if !k.sameContainers(spec.Child("initContainers"), pod.Spec.InitContainers, old.Spec.InitContainers) || !same {
		return k.errs
	}
	k.changedDeadline(
		spec.Child("activeDeadlineSeconds"),
		pod.Spec.ActiveDeadlineSeconds,
		old.Spec.ActiveDeadlineSeconds,
	)
	k.changedGates(spec.Child("schedulingGates"), pod.Spec.SchedulingGates, old.Spec.SchedulingGates)
	k.changedTolerations(spec.Child("tolerations"), pod.Spec.Tolerations, old.Spec.Tolerations)

	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.SchedulingGates = old.Spec.SchedulingGates
	rest.Tolerations = old.Spec.Tolerations
	if was, is := old.Spec.TerminationGracePeriodSeconds, rest.TerminationGracePeriodSeconds; was != nil && *was < 0 &&
		is != nil &&
		*is == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		k.tightenedScheduling(spec, rest, &old.Spec)
	}
	if changed := Differences("spec", old.Spec, *rest); len(changed) > 0 {
		k.forbidden(spec, immutableFieldsMessage+"\nchanged: "+strings.Join(changed, ", "))
	}
	return k.errs
}

// changedMetadata validates changes of the metadata.
func (k *validator) changedMetadata(pod, old *corev1.Pod) {
	at := field.NewPath("metadata")
	k.errs = append(k.errs, validation.ValidateObjectMetaUpdate(&pod.ObjectMeta, &old.ObjectMeta, at)...)
	is, now := pod.Annotations[corev1.MirrorPodAnnotationKey]
	was, before := old.Annotations[corev1.MirrorPodAnnotationKey]
	path := at.Child("annotations").Key(corev1.MirrorPodAnnotationKey)
	switch {
	case now && !before:
		k.forbidden(path, "may not add mirror pod annotation")
	case !now && before:
		k.forbidden(path, "may not remove mirror pod annotation")
	case is != was:
		k.forbidden(path, "may not update mirror pod annotation")
	}
}

// sameContainers verifies that no container was added or removed. Only then can the rest be
// compared.
func (k *validator) sameContainers(at *field.Path, now, before []corev1.Container) bool {
	if len(now) != len(before) {
		k.forbidden(at, "pod updates may not add or remove containers")
		return false
	}
	return true
}

// changedDeadline allows a deadline to be set and shortened.
func (k *validator) changedDeadline(at *field.Path, now, before *int64) {
	switch {
	case now == nil && before != nil:
		k.invalid(at, now, "must not update from a positive integer to nil value")
	case now == nil:
	case *now < 0 || *now > math.MaxInt32:
		// Reported by the validation of the new pod.
	case before != nil && *before < *now:
		k.invalid(at, *now, "must be less than or equal to previous value")
	}
}

// changedGates allows gates to be removed.
func (k *validator) changedGates(at *field.Path, now, before []corev1.PodSchedulingGate) {
	known := map[string]bool{}
	for _, g := range before {
		known[g.Name] = true
	}
	for i, g := range now {
		if !known[g.Name] {
			k.forbidden(at.Index(i), "only deletion is allowed, but found new scheduling gate '"+g.Name+"'")
		}
	}
}

// changedTolerations allows tolerations to be added. Of an existing toleration only
// tolerationSeconds may change.
func (k *validator) changedTolerations(at *field.Path, now, before []corev1.Toleration) {
	for _, was := range before {
		found := false
		was.TolerationSeconds = nil
		for _, is := range now {
			is.TolerationSeconds = nil
			found = found || equality.Semantic.DeepEqual(is, was)
		}
		if !found {
			k.forbidden(at, "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
}

// tightenedScheduling allows a gated pod to select fewer nodes than before. It makes the validated
// fields of both specs equal, so that the rest can be compared.
func (k *validator) tightenedScheduling(at *field.Path, spec *corev1.PodSpec, old *corev1.PodSpec) {
	for key, was := range old.NodeSelector {
		if is, ok := spec.NodeSelector[key]; !ok || is != was {
			k.invalid(at.Child("nodeSelector"), spec.NodeSelector, "no mutations allowed to existing entries: %s", key)
		}
	}
	spec.NodeSelector = old.NodeSelector
	var was, is *corev1.NodeSelector
	if a := old.Affinity; a != nil && a.NodeAffinity != nil {
		was = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		is = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	if was != nil {
		k.tightenedTerms(
			at.Child(
				"affinity",
				"nodeAffinity",
				"requiredDuringSchedulingIgnoredDuringExecution",
				"nodeSelectorTerms",
			),
			is,
			was,
		)
	}
	// Preferences of a gated pod may change freely.
	switch {
	case old.Affinity == nil && spec.Affinity != nil &&
		spec.Affinity.PodAffinity == nil && spec.Affinity.PodAntiAffinity == nil:
		spec.Affinity = nil
	case old.Affinity != nil && spec.Affinity == nil &&
		old.Affinity.PodAffinity == nil && old.Affinity.PodAntiAffinity == nil:
		spec.Affinity = old.Affinity
	case old.Affinity != nil && spec.Affinity != nil:
		spec.Affinity.NodeAffinity = old.Affinity.NodeAffinity
	}
}

// tightenedTerms validates changes of node selector terms. Terms are ORed and may not be added.
// Requirements within a term are ANDed and may only be added.
func (k *validator) tightenedTerms(at *field.Path, is, was *corev1.NodeSelector) {
	if is == nil || len(is.NodeSelectorTerms) != len(was.NodeSelectorTerms) {
		k.invalid(at, is, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	for i := range was.NodeSelectorTerms {
		for _, pair := range [][2][]corev1.NodeSelectorRequirement{
			{is.NodeSelectorTerms[i].MatchExpressions, was.NodeSelectorTerms[i].MatchExpressions},
			{is.NodeSelectorTerms[i].MatchFields, was.NodeSelectorTerms[i].MatchFields},
		} {
			now, before := pair[0], pair[1]
			if len(now) < len(before) || !equality.Semantic.DeepEqual(now[:len(before)], before) {
				k.invalid(
					at.Index(i),
					is.NodeSelectorTerms[i],
					"only additions are allowed (no mutations or deletions)",
				)
			}
		}
		if len(was.NodeSelectorTerms[i].MatchExpressions)+len(was.NodeSelectorTerms[i].MatchFields) == 0 &&
			!equality.Semantic.DeepEqual(is.NodeSelectorTerms[i], was.NodeSelectorTerms[i]) {
			k.invalid(at.Index(i), is.NodeSelectorTerms[i], "an empty term matches no node and must stay empty")
		}
	}
}
