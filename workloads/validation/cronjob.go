package validation

import (
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/rules"
	"berth/podspec"
)

func defaultCronJob(c *batchv1.CronJob) {
	rules.SetIfZero(&c.Spec.ConcurrencyPolicy, batchv1.AllowConcurrent)
	rules.SetIfNil(&c.Spec.Suspend, false)
	rules.SetIfNil(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	rules.SetIfNil(&c.Spec.FailedJobsHistoryLimit, 1)
	defaultFailures(&c.Spec.JobTemplate.Spec)
	podspec.SetTemplateDefaults(&c.Spec.JobTemplate.Spec.Template)
}

// cronJob validates all of a CronJob that does not depend on an older version of it.
func (k *validator) cronJob(c *batchv1.CronJob) {
	s := &c.Spec
	if s.Schedule == "" {
		k.Required(spec().Child("schedule"), "")
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

// schedule validates the schedule and the time zone. old is nil for a new CronJob. What an old one has is accepted
// again: a time zone that no longer exists, and a time zone in the schedule.
func (k *validator) schedule(c, old *batchv1.CronJob) {
	at, text := spec().Child("schedule"), c.Spec.Schedule
	hasZone := strings.Contains(text, "TZ")
	switch allowed := old != nil && strings.Contains(old.Spec.Schedule, "TZ"); {
	case !hasZone:
	case !allowed:
		k.Invalid(at, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	case c.Spec.TimeZone != nil:
		k.Invalid(at, text, "cannot use both timeZone field and TZ or CRON_TZ in schedule")
	}
	if hasZone {
		// Without the zone: the parser panics if nothing follows it.
		_, text, _ = strings.Cut(text, " ")
	}
	if c.Spec.Schedule != "" {
		if _, err := cron.ParseStandard(strings.TrimSpace(text)); err != nil {
			k.Invalid(at, c.Spec.Schedule, "%v", err)
		}
	}
	if old == nil || !ptr.Equal(old.Spec.TimeZone, c.Spec.TimeZone) {
		k.timeZone(spec().Child("timeZone"), c.Spec.TimeZone)
	}
}

// zonePart is one part of the name of a time zone, see https://data.iana.org/time-zones/theory.html#naming.
var zonePart = regexp.MustCompile(`^[A-Za-z._0-9+][A-Za-z._0-9+-]{0,13}$`)

// timeZone validates the name of a time zone, which must be in the database of this program or of the host.
func (k *validator) timeZone(at *field.Path, name *string) {
	if name == nil {
		return
	}
	if *name == "" {
		k.Invalid(at, *name, "timeZone must be nil or non-empty string")
		return
	}
	for part := range strings.SplitSeq(*name, "/") {
		if part == "." || part == ".." || !zonePart.MatchString(part) {
			k.Invalid(at, *name, "unknown time zone %s", *name)
			return
		}
	}
	if strings.EqualFold(*name, "Local") {
		k.Invalid(at, *name, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(*name); err != nil {
		k.Invalid(at, *name, "%v", err)
	}
}
