package validation

import (
	"fmt"
	"maps"
	"math"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/rules"
	"berth/podspec"
)

const (
	controllerUID = "batch.kubernetes.io/controller-uid"
	jobName       = "batch.kubernetes.io/job-name"
	// The Jobs of a CronJob have a suffix of eleven characters, and a pod name is also a label
	// value.
	maxCronJobName     = 63 - 11
	maxIndexed         = 100_000
	maxFailureRules    = 20
	maxFailureCodes    = 255
	maxFailurePatterns = 20
	maxSuccessRules    = 20
	maxIndexesLength   = 64 * 1024
	maxManagedByLength = 63
	// More completions than these are possible with backoffLimitPerIndex only within the limits below, so that the
	// status does not become too large.
	manyCompletions   = 100_000
	manyParallelism   = 10_000
	manyFailedIndexes = 10_000
)

// batchRules returns the rules of the group batch.
func batchRules(kind string) (rules.Rules, bool) {
	switch kind {
	case "Job":
		return definition[*batchv1.Job]{
			SetDefaults: defaultJob,
			Prepare: func(j *batchv1.Job) {
				j.Spec.Scheduling = nil // not enabled by default
				generateJobSelector(j)
			},
			PrepareUpdate:  func(j, _ *batchv1.Job) { j.Spec.Scheduling = nil },
			Validate:       (*validator).job,
			ValidateCreate: func(k *validator, j *batchv1.Job) { k.generatedSelector(j); k.podHostnames(j) },
			ValidateUpdate: (*validator).jobChange,
			ValidateStatus: (*validator).jobStatus,
		}.Rules(newValidator), true
	case "CronJob":
		return definition[*batchv1.CronJob]{
			SetDefaults: defaultCronJob,
			Validate:    (*validator).cronJob,
			ValidateCreate: func(k *validator, c *batchv1.CronJob) {
				if len(c.Name) > maxCronJobName {
					k.Invalid(metadata().Child("name"), c.Name, "must be no more than %d characters", maxCronJobName)
				}
				k.schedule(c, nil)
			},
			ValidateUpdate: (*validator).schedule,
		}.Rules(newValidator), true
	}
	return rules.Rules{}, false
}

func defaultJob(j *batchv1.Job) {
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		rules.SetIfNil(&s.Completions, 1)
	}
	rules.SetIfNil(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		rules.SetIfNil(&s.BackoffLimit, math.MaxInt32)
	}
	rules.SetIfNil(&s.BackoffLimit, 6)
	if len(j.Labels) == 0 && len(s.Template.Labels) > 0 {
		j.Labels = s.Template.Labels // one map, as upstream: generateJobSelector adds to both
	}
	rules.SetIfNil(&s.CompletionMode, batchv1.NonIndexedCompletion)
	rules.SetIfNil(&s.Suspend, false)
	rules.SetIfNil(&s.ManualSelector, false)
	replace := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replace = batchv1.Failed
	}
	rules.SetIfNil(&s.PodReplacementPolicy, replace)
	defaultFailures(s)
	podspec.SetTemplateDefaults(&s.Template)
}

func defaultFailures(s *batchv1.JobSpec) {
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		for j := range s.PodFailurePolicy.Rules[i].OnPodConditions {
			rules.SetIfZero(&s.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
		}
	}
}

// generatedLabels returns the labels that identify the pods of a Job.
func generatedLabels(j *batchv1.Job) labels.Set {
	uid := string(j.UID)
	return labels.Set{controllerUID: uid, jobName: j.Name, "controller-uid": uid, "job-name": j.Name}
}

// generateJobSelector sets a selector with the Job's UID, unless the Job has a manual selector.
func generateJobSelector(j *batchv1.Job) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for key, value := range generatedLabels(j) {
		if _, taken := j.Spec.Template.Labels[key]; !taken {
			j.Spec.Template.Labels[key] = value
		}
	}
	rules.SetIfNil(&j.Spec.Selector, metav1.LabelSelector{})
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, taken := j.Spec.Selector.MatchLabels[controllerUID]; !taken {
		j.Spec.Selector.MatchLabels[controllerUID] = string(j.UID)
	}
}

func (k *validator) job(j *batchv1.Job) {
	k.jobSpec(spec(), &j.Spec)
	at := spec().Child("selector")
	if j.Spec.Selector == nil {
		k.Required(at, "")
	} else {
		k.Selector(at, j.Spec.Selector)
	}
	if parsed, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil &&
		!parsed.Matches(labels.Set(j.Spec.Template.Labels)) {
		k.Invalid(
			spec().Child("template", "metadata", "labels"),
			j.Spec.Template.Labels,
			"`selector` does not match template `labels`",
		)
	}
}

// generatedSelector validates that the selector and the labels of the template are those that generateJobSelector sets.
func (k *validator) generatedSelector(j *batchv1.Job) {
	if j.Spec.Selector == nil || j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	if j.UID == "" {
		k.Required(metadata().Child("uid"), "")
	}
	generated := generatedLabels(j)
	for _, key := range slices.Sorted(maps.Keys(generated)) {
		at := spec().Child("template", "metadata", "labels").Key(key)
		problem := fmt.Sprintf("must be '%s'", generated[key])
		if value, ok := j.Spec.Template.Labels[key]; !ok {
			k.Required(at, problem)
		} else if value != generated[key] {
			k.Invalid(at, j.Spec.Template.Labels, "%s", problem)
		}
	}
	if parsed, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !parsed.Matches(generated) {
		k.Invalid(spec().Child("selector"), j.Spec.Selector, "`selector` not auto-generated")
	}
}

// podHostnames validates that the hostnames of the pods of an Indexed Job are valid.
func (k *validator) podHostnames(j *batchv1.Job) {
	mode, n := j.Spec.CompletionMode, j.Spec.Completions
	if mode == nil || *mode != batchv1.IndexedCompletion || n == nil || *n <= 0 {
		return
	}
	if last := fmt.Sprintf("%s-%d", j.Name, *n-1); len(validation.IsDNS1123Label(last)) > 0 {
		k.Invalid(metadata().Child("name"), j.Name, "will not able to create pod with invalid DNS label: %s", last)
	}
}

func (k *validator) jobSpec(at *field.Path, s *batchv1.JobSpec) {
	rules.NotNegative(k, at.Child("parallelism"), s.Parallelism)
	rules.NotNegative(k, at.Child("completions"), s.Completions)
	rules.NotNegative(k, at.Child("activeDeadlineSeconds"), s.ActiveDeadlineSeconds)
	rules.NotNegative(k, at.Child("backoffLimit"), s.BackoffLimit)
	rules.NotNegative(k, at.Child("ttlSecondsAfterFinished"), s.TTLSecondsAfterFinished)
	rules.NotNegative(k, at.Child("backoffLimitPerIndex"), s.BackoffLimitPerIndex)
	rules.NotNegative(k, at.Child("maxFailedIndexes"), s.MaxFailedIndexes)
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		k.Required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified")
	}
	if m := s.ManagedBy; m != nil {
		k.AddAll(validation.IsDomainPrefixedPath(at.Child("managedBy"), *m))
		if len(*m) > maxManagedByLength {
			k.Add(field.TooLong(at.Child("managedBy"), "", maxManagedByLength))
		}
	}
	k.completionMode(at, s)
	k.failures(at.Child("podFailurePolicy"), s)
	rules.OneOfIfSet(k, at.Child("podReplacementPolicy"), s.PodReplacementPolicy, batchv1.Failed,
		batchv1.TerminatingOrFailed)
	if s.PodFailurePolicy != nil && s.PodReplacementPolicy != nil &&
		*s.PodReplacementPolicy == batchv1.TerminatingOrFailed {
		k.Add(
			field.NotSupported(
				at.Child("podReplacementPolicy"),
				*s.PodReplacementPolicy,
				[]batchv1.PodReplacementPolicy{batchv1.Failed},
			),
		)
	}
	k.AddAll(podspec.ValidateTemplate(&s.Template, at.Child("template")))
	policy, supported := s.Template.Spec.RestartPolicy, []corev1.RestartPolicy{
		corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever,
	}
	if policy == "" || policy == corev1.RestartPolicyAlways {
		k.Add(
			field.Required(
				at.Child("template", "spec", "restartPolicy"),
				fmt.Sprintf("valid values: %q, %q", supported[0], supported[1]),
			),
		)
	} else if !slices.Contains(supported, policy) {
		k.Add(field.NotSupported(at.Child("template", "spec", "restartPolicy"), policy, supported))
	} else if s.PodFailurePolicy != nil && policy != corev1.RestartPolicyNever {
		k.Invalid(at.Child("template", "spec", "restartPolicy"), policy,
			"only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever)
	}
}

// completionMode validates the completion mode and the fields that depend on it.
func (k *validator) completionMode(at *field.Path, s *batchv1.JobSpec) {
	rules.OneOfIfSet(k, at.Child("completionMode"), s.CompletionMode, batchv1.NonIndexedCompletion,
		batchv1.IndexedCompletion)
	mode := ptr.Deref(s.CompletionMode, batchv1.NonIndexedCompletion)
	if mode == batchv1.IndexedCompletion {
		k.indexed(at, s)
		return
	}
	const problem = "requires indexed completion mode"
	if s.BackoffLimitPerIndex != nil && mode == batchv1.NonIndexedCompletion {
		k.Invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, problem)
	}
	if s.MaxFailedIndexes != nil && mode == batchv1.NonIndexedCompletion {
		k.Invalid(at.Child("maxFailedIndexes"), *s.MaxFailedIndexes, problem)
	}
	if s.SuccessPolicy != nil {
		k.Invalid(at.Child("successPolicy"), *s.SuccessPolicy, problem)
	}
}

// indexed validates an Indexed Job.
func (k *validator) indexed(at *field.Path, s *batchv1.JobSpec) {
	parallelism, maxFailed := at.Child("parallelism"), at.Child("maxFailedIndexes")
	if s.Completions == nil {
		k.Required(at.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion))
	}
	if s.Parallelism != nil && *s.Parallelism > maxIndexed {
		k.Invalid(parallelism, *s.Parallelism, "must be less than or equal to %d when completion mode is %s",
			maxIndexed, batchv1.IndexedCompletion)
	}
	if f := s.MaxFailedIndexes; f != nil && *f > maxIndexed {
		k.Invalid(maxFailed, *f, "must be less than or equal to %d", maxIndexed)
	}
	if s.Completions == nil {
		return
	}
	if f := s.MaxFailedIndexes; f != nil && *f > *s.Completions {
		k.Invalid(maxFailed, *f, "must be less than or equal to completions")
	}
	if *s.Completions > manyCompletions && s.BackoffLimitPerIndex != nil {
		const problem = "must be less than or equal to %d when completions are above %d and used with backoff limit " +
			"per index"
		if s.MaxFailedIndexes == nil {
			k.Required(maxFailed, fmt.Sprintf("must be specified when completions is above %d", manyCompletions))
		} else if *s.MaxFailedIndexes > manyFailedIndexes {
			k.Invalid(maxFailed, *s.MaxFailedIndexes, problem, manyFailedIndexes, manyCompletions)
		}
		if s.Parallelism != nil && *s.Parallelism > manyParallelism {
			k.Invalid(parallelism, *s.Parallelism, problem, manyParallelism, manyCompletions)
		}
	}
	if s.SuccessPolicy != nil {
		k.successPolicy(at.Child("successPolicy", "rules"), s.SuccessPolicy.Rules, *s.Completions)
	}
}

// successPolicy validates the rules of a success policy.
func (k *validator) successPolicy(at *field.Path, list []batchv1.SuccessPolicyRule, completions int32) {
	if len(list) == 0 {
		k.Required(at, "at least one rules must be specified when the successPolicy is specified")
	}
	if len(list) > maxSuccessRules {
		k.Add(field.TooMany(at, len(list), maxSuccessRules))
	}
	for i, r := range list {
		count, total := at.Index(i).Child("succeededCount"), int32(0)
		if r.SucceededCount == nil && r.SucceededIndexes == nil {
			k.Required(at.Index(i), "at least one of succeededCount or succeededIndexes must be specified")
		}
		if text := r.SucceededIndexes; text != nil {
			indexes := at.Index(i).Child("succeededIndexes")
			if len(*text) > maxIndexesLength {
				k.Add(field.TooLong(indexes, "", maxIndexesLength))
			}
			var err error
			if total, err = countIndexes(*text, completions); err != nil {
				k.Invalid(indexes, *text, "error parsing succeededIndexes: %v", err)
			}
		}
		rules.NotNegative(k, count, r.SucceededCount)
		if n := r.SucceededCount; n != nil && *n > completions {
			k.Invalid(count, *n, "must be less than or equal to %d (the number of specified completions)", completions)
		}
		if n := r.SucceededCount; n != nil && r.SucceededIndexes != nil && *n > total {
			k.Invalid(count, *n,
				"must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)",
				total)
		}
	}
}

// failures validates the pod failure policy and the backoff limits.
func (k *validator) failures(at *field.Path, s *batchv1.JobSpec) {
	if s.PodFailurePolicy == nil {
		return
	}
	all := at.Child("rules")
	if n := len(s.PodFailurePolicy.Rules); n > maxFailureRules {
		k.Add(field.TooMany(all, n, maxFailureRules))
	}
	known := map[string]bool{}
	for _, list := range [][]corev1.Container{s.Template.Spec.InitContainers, s.Template.Spec.Containers} {
		for i := range list {
			known[list[i].Name] = true
		}
	}
	for i := range s.PodFailurePolicy.Rules {
		r, path := &s.PodFailurePolicy.Rules[i], all.Index(i)
		rules.OneOf(
			k,
			path.Child("action"),
			r.Action,
			batchv1.PodFailurePolicyActionFailJob,
			batchv1.PodFailurePolicyActionFailIndex,
			batchv1.PodFailurePolicyActionIgnore,
			batchv1.PodFailurePolicyActionCount,
		)
		if r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			k.Invalid(path.Child("action"), r.Action, "requires the backoffLimitPerIndex to be set")
		}
		if n := len(r.OnPodConditions); n > maxFailurePatterns {
			k.Add(field.TooMany(path.Child("onPodConditions"), n, maxFailurePatterns))
		}
		switch {
		case r.OnExitCodes != nil && len(r.OnPodConditions) > 0:
			k.Invalid(path, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case r.OnExitCodes == nil && len(r.OnPodConditions) == 0:
			k.Invalid(path, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		}
		if r.OnExitCodes != nil {
			k.exitCodes(path.Child("onExitCodes"), r.OnExitCodes, known)
		}
	}
}

func (k *validator) exitCodes(
	at *field.Path,
	r *batchv1.PodFailurePolicyOnExitCodesRequirement,
	known map[string]bool,
) {
	rules.OneOf(
		k,
		at.Child("operator"),
		r.Operator,
		batchv1.PodFailurePolicyOnExitCodesOpIn,
		batchv1.PodFailurePolicyOnExitCodesOpNotIn,
	)
	if r.ContainerName != nil && !known[*r.ContainerName] {
		k.Invalid(
			at.Child("containerName"),
			*r.ContainerName,
			"must be one of the container or initContainer names in the pod template",
		)
	}
	values := at.Child("values")
	if n := len(r.Values); n == 0 {
		k.Invalid(values, r.Values, "at least one value is required")
	} else if n > maxFailureCodes {
		k.Add(field.TooMany(values, n, maxFailureCodes))
	}
	for i, v := range r.Values {
		if r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && v == 0 {
			k.Invalid(values.Index(i), v, "must not be 0 for the In operator")
		}
		if slices.Contains(r.Values[:i], v) {
			k.Add(field.Duplicate(values.Index(i), v))
		}
	}
	if !slices.IsSorted(r.Values) {
		k.Invalid(values, r.Values, "must be ordered")
	}
}
