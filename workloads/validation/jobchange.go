package validation

import (
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/podspec"
)

func (k *validator) jobChange(j, old *batchv1.Job) {
	now, before := &j.Spec, &old.Spec
	if !ptr.Equal(now.Completions, before.Completions) { // others are left as an earlier release has accepted them
		k.podHostnames(j)
	}
	k.completionsChange(now, before)
	k.Immutable(spec().Child("selector"), now.Selector, before.Selector)
	k.jobTemplateChange(&now.Template, old)
	k.Immutable(spec().Child("completionMode"), now.CompletionMode, before.CompletionMode)
	k.Immutable(spec().Child("podFailurePolicy"), now.PodFailurePolicy, before.PodFailurePolicy)
	k.Immutable(spec().Child("backoffLimitPerIndex"), now.BackoffLimitPerIndex, before.BackoffLimitPerIndex)
	k.Immutable(spec().Child("managedBy"), now.ManagedBy, before.ManagedBy)
	k.Immutable(spec().Child("successPolicy"), now.SuccessPolicy, before.SuccessPolicy)
}

// completionsChange validates a change of the completions. Those of an Indexed Job may change together with its
// parallelism. That they are not nil is validated in any case.
func (k *validator) completionsChange(now, before *batchv1.JobSpec) {
	at := spec().Child("completions")
	switch {
	case ptr.Deref(now.CompletionMode, "") != batchv1.IndexedCompletion:
		k.Immutable(at, now.Completions, before.Completions)
	case now.Completions == nil || ptr.Equal(now.Completions, before.Completions):
	case !ptr.Equal(now.Completions, now.Parallelism):
		k.Invalid(at, *now.Completions, "can only be modified in tandem with %s", spec().Child("parallelism"))
	}
}

// jobTemplateChange validates a change of the template. A queue controller may change where the pods of a suspended Job
// run and what resources they get.
func (k *validator) jobTemplateChange(now *corev1.PodTemplateSpec, old *batchv1.Job) {
	before := &old.Spec.Template
	if !templateIsMutable(old) {
		k.unchanged(spec().Child("template"), *before, *now)
		return
	}
	allowed := before.Spec.DeepCopy()
	allowed.NodeSelector, allowed.Tolerations = now.Spec.NodeSelector, now.Spec.Tolerations
	allowed.SchedulingGates = now.Spec.SchedulingGates
	allowed.Affinity = withNodeAffinity(before.Spec.Affinity, now.Spec.Affinity)
	copyResources(allowed.InitContainers, now.Spec.InitContainers)
	copyResources(allowed.Containers, now.Spec.Containers)
	k.unchanged(spec().Child("template", "spec"), *allowed, now.Spec)
}

// templateIsMutable reports whether the template of a Job may change: the Job is suspended, and no pod has the old one.
func templateIsMutable(j *batchv1.Job) bool {
	return ptr.Deref(j.Spec.Suspend, false) && j.Status.Active == 0 &&
		(j.Status.StartTime == nil || hasJobCondition(&j.Status, batchv1.JobSuspended, corev1.ConditionTrue))
}

// unchanged validates that an object has not changed. The error names the changed fields, because the object is long
// and its values may be secret.
func (k *validator) unchanged(at *field.Path, before, now any) {
	if !equality.Semantic.DeepEqual(before, now) {
		k.Invalid(at, strings.Join(podspec.Differences("", before, now), ", "), "field is immutable")
	}
}

// withNodeAffinity returns the old affinity with the node affinity of the new one.
func withNodeAffinity(before, now *corev1.Affinity) *corev1.Affinity {
	out := ptr.Deref(before, corev1.Affinity{})
	out.NodeAffinity = nil
	if now != nil {
		out.NodeAffinity = now.NodeAffinity
	} else if out == (corev1.Affinity{}) {
		return nil
	}
	return &out
}

// copyResources copies the resources of containers to those with the same name at the same place.
func copyResources(to, from []corev1.Container) {
	if len(to) != len(from) {
		return
	}
	for i := range to {
		if to[i].Name == from[i].Name {
			to[i].Resources = from[i].Resources
		}
	}
}
