package validation

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
)

// batchRules returns the rules of the group batch.
func batchRules(kind string) (rules.Rules, bool) {
	switch kind {
	case "Job":
		return definition[*batchv1.Job]{
			SetDefaults:    defaultJob,
			Prepare:        generateJobSelector,
			Validate:       (*validator).job,
			ValidateUpdate: (*validator).jobChange,
			ValidateStatus: func(k *validator, j, _ *batchv1.Job) {
				k.Counts(map[string]int32{"active": j.Status.Active, "succeeded": j.Status.Succeeded,
					"failed": j.Status.Failed})
			},
		}.Rules(newValidator), true
	case "CronJob":
		return definition[*batchv1.CronJob]{
			SetDefaults: defaultCronJob, Validate: (*validator).cronJob,
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
		j.Labels = map[string]string{}
		maps.Copy(j.Labels, s.Template.Labels)
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

// generateJobSelector sets a selector with the Job's UID, unless the Job has a manual selector.
func generateJobSelector(j *batchv1.Job) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for key, value := range map[string]string{
		controllerUID: string(j.UID), jobName: j.Name, "controller-uid": string(j.UID), "job-name": j.Name,
	} {
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
		return
	}
	k.Selector(at, j.Spec.Selector)
	if parsed, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil &&
		!parsed.Matches(labels.Set(j.Spec.Template.Labels)) {
		k.Invalid(
			spec().Child("template", "metadata", "labels"),
			j.Spec.Template.Labels,
			"`selector` does not match template `labels`",
		)
	}
	manual := j.Spec.ManualSelector != nil && *j.Spec.ManualSelector
	if !manual && j.Spec.Selector.MatchLabels[controllerUID] != string(j.UID) {
		k.Invalid(at, j.Spec.Selector, "`selector` not auto-generated")
	}
}

func (k *validator) jobSpec(at *field.Path, s *batchv1.JobSpec) {
	rules.NotNegative(k, at.Child("parallelism"), s.Parallelism)
	rules.NotNegative(k, at.Child("completions"), s.Completions)
	rules.Positive(k, at.Child("activeDeadlineSeconds"), s.ActiveDeadlineSeconds)
	rules.NotNegative(k, at.Child("backoffLimit"), s.BackoffLimit)
	rules.NotNegative(k, at.Child("ttlSecondsAfterFinished"), s.TTLSecondsAfterFinished)
	rules.NotNegative(k, at.Child("backoffLimitPerIndex"), s.BackoffLimitPerIndex)
	rules.NotNegative(k, at.Child("maxFailedIndexes"), s.MaxFailedIndexes)
	k.indexed(at, s)
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

// indexed validates the completion mode and its fields.
func (k *validator) indexed(at *field.Path, s *batchv1.JobSpec) {
	mode := batchv1.NonIndexedCompletion
	if s.CompletionMode != nil {
		mode = *s.CompletionMode
	}
	rules.OneOf(k, at.Child("completionMode"), mode, batchv1.NonIndexedCompletion, batchv1.IndexedCompletion)
	if mode != batchv1.IndexedCompletion {
		if s.BackoffLimitPerIndex != nil {
			k.Invalid(at.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode")
		}
		if s.SuccessPolicy != nil {
			k.Invalid(at.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode")
		}
		return
	}
	if s.Completions == nil {
		k.Required(at.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion))
	}
	if s.Parallelism != nil && *s.Parallelism > maxIndexed {
		k.Invalid(
			at.Child("parallelism"),
			*s.Parallelism,
			"must be less than or equal to %d when completion mode is %s",
			maxIndexed,
			batchv1.IndexedCompletion,
		)
	}
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		k.Required(at.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified")
	}
	if s.SuccessPolicy != nil {
		list := at.Child("successPolicy", "rules")
		if len(s.SuccessPolicy.Rules) == 0 {
			k.Required(list, "at least one rules must be specified when the successPolicy is specified")
		}
		for i, r := range s.SuccessPolicy.Rules {
			if r.SucceededCount == nil && r.SucceededIndexes == nil {
				k.Required(list.Index(i), "at least one of succeededCount or succeededIndexes must be specified")
			}
			rules.Positive(k, list.Index(i).Child("succeededCount"), r.SucceededCount)
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
}

func (k *validator) jobChange(j, old *batchv1.Job) {
	now, oldSpec := &j.Spec, &old.Spec
	elastic := oldSpec.CompletionMode != nil && *oldSpec.CompletionMode == batchv1.IndexedCompletion &&
		now.Completions != nil && now.Parallelism != nil && *now.Completions == *now.Parallelism
	if !elastic {
		k.Immutable(spec().Child("completions"), now.Completions, oldSpec.Completions)
	}
	k.Immutable(spec().Child("selector"), now.Selector, oldSpec.Selector)
	k.Immutable(spec().Child("completionMode"), now.CompletionMode, oldSpec.CompletionMode)
	k.Immutable(spec().Child("podFailurePolicy"), now.PodFailurePolicy, oldSpec.PodFailurePolicy)
	k.Immutable(spec().Child("backoffLimitPerIndex"), now.BackoffLimitPerIndex, oldSpec.BackoffLimitPerIndex)
	k.Immutable(spec().Child("managedBy"), now.ManagedBy, oldSpec.ManagedBy)
	k.Immutable(spec().Child("successPolicy"), now.SuccessPolicy, oldSpec.SuccessPolicy)
	template := now.Template.DeepCopy()
	if oldSpec.Suspend != nil && *oldSpec.Suspend && old.Status.StartTime == nil {
		// A queue controller may change the node placement of a suspended Job that has not started.
		template.Labels, template.Annotations = oldSpec.Template.Labels, oldSpec.Template.Annotations
		template.Spec.NodeSelector = oldSpec.Template.Spec.NodeSelector
		template.Spec.Affinity = oldSpec.Template.Spec.Affinity
		template.Spec.Tolerations, template.Spec.SchedulingGates = oldSpec.Template.Spec.Tolerations,
			oldSpec.Template.Spec.SchedulingGates
	}
	if !equality.Semantic.DeepEqual(*template, oldSpec.Template) {
		changed := podspec.Differences("", oldSpec.Template, *template)
		k.Invalid(spec().Child("template"), strings.Join(changed, ", "), "field is immutable")
	}
}

func defaultCronJob(c *batchv1.CronJob) {
	rules.SetIfZero(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	rules.SetIfNil(&c.Spec.Suspend, false)
	rules.SetIfNil(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	rules.SetIfNil(&c.Spec.FailedJobsHistoryLimit, 1)
	defaultFailures(&c.Spec.JobTemplate.Spec)
	podspec.SetTemplateDefaults(&c.Spec.JobTemplate.Spec.Template)
}

func (k *validator) cronJob(c *batchv1.CronJob) {
	s := &c.Spec
	if len(c.Name) > maxCronJobName {
		k.Invalid(metadata().Child("name"), c.Name, "must be no more than %d characters", maxCronJobName)
	}
	at := spec().Child("schedule")
	if s.Schedule == "" {
		k.Required(at, "")
	} else if problem := scheduleProblem(s.Schedule); problem != "" {
		k.Invalid(at, s.Schedule, "%s", problem)
	}
	if strings.Contains(s.Schedule, "TZ") {
		k.Invalid(at, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	}
	if z := s.TimeZone; z != nil && !validZone(*z) {
		k.Invalid(spec().Child("timeZone"), *z, "unknown time zone %s", *z)
	}
	rules.NotNegative(k, spec().Child("startingDeadlineSeconds"), s.StartingDeadlineSeconds)
	rules.OneOf(
		k,
		spec().Child("concurrencyPolicy"),
		s.ConcurrencyPolicy,
		batchv1.AllowConcurrent,
		batchv1.ForbidConcurrent,
		batchv1.ReplaceConcurrent,
	)
	rules.NotNegative(k, spec().Child("successfulJobsHistoryLimit"), s.SuccessfulJobsHistoryLimit)
	rules.NotNegative(k, spec().Child("failedJobsHistoryLimit"), s.FailedJobsHistoryLimit)
	job := spec().Child("jobTemplate", "spec")
	k.jobSpec(job, &s.JobTemplate.Spec)
	if m := s.JobTemplate.Spec.ManualSelector; m != nil && *m {
		k.Add(field.NotSupported(job.Child("manualSelector"), *m, []string{"nil", "false"}))
	}
	if sel := s.JobTemplate.Spec.Selector; sel != nil {
		k.Invalid(job.Child("selector"), sel, "`selector` will be auto-generated")
	}
}

// validZone validates the syntax of a time zone name. Whether the zone exists is checked by the controller.
func validZone(name string) bool {
	parts := strings.Split(name, "/")
	for _, part := range parts {
		other := func(r rune) bool {
			letter := r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
			return !letter && !strings.ContainsRune("_+-", r)
		}
		if part == "" || strings.ContainsFunc(part, other) {
			return false
		}
	}
	return len(parts) <= 3 && !strings.EqualFold(name, "Local")
}

// cronFields are the five fields of a schedule with their ranges.
var cronFields = []struct {
	name      string
	low, high int
	words     []string
}{
	{"minute", 0, 59, nil}, {"hour", 0, 23, nil}, {"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of the week", 0, 6, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// scheduleProblem returns what is invalid in a cron schedule, or "".
func scheduleProblem(schedule string) string {
	if strings.HasPrefix(schedule, "@") {
		name := strings.ToLower(schedule)
		if slices.Contains([]string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"},
			name) {
			return ""
		}
		if strings.HasPrefix(name, "@every ") {
			return ""
		}
		return "unrecognized descriptor: " + schedule
	}
	parts := strings.Fields(schedule)
	if strings.Contains(schedule, "TZ") && len(parts) > 0 {
		parts = parts[1:] // rejected elsewhere
	}
	if len(parts) != len(cronFields) {
		return fmt.Sprintf("expected exactly %d fields, found %d: %v", len(cronFields), len(parts), parts)
	}
	for i, f := range cronFields {
		for item := range strings.SplitSeq(parts[i], ",") {
			if !cronItem(item, f.low, f.high, f.words) {
				return fmt.Sprintf("failed to parse %s %q: must be of %d to %d", f.name, item, f.low, f.high)
			}
		}
	}
	return ""
}

// cronItem validates one item: *, a value or a range, with an optional step.
func cronItem(item string, low, high int, names []string) bool {
	span, step, stepped := strings.Cut(item, "/")
	if n, err := strconv.Atoi(step); stepped && (err != nil || n <= 0) {
		return false
	}
	if span == "*" || span == "?" {
		return true
	}
	first, last, ranged := strings.Cut(span, "-")
	a, ok := cronValue(first, low, high, names)
	if !ok || !ranged {
		return ok
	}
	b, ok := cronValue(last, low, high, names)
	return ok && a <= b
}

func cronValue(s string, low, high int, names []string) (int, bool) {
	if i := slices.Index(names, strings.ToLower(s)); i >= 0 {
		return low + i, true
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= low && n <= high
}
