package cronjob

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the time zones of the host

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/workloads"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	edit := func(f func(*batchv1.CronJob)) func(*batchv1.CronJob) { return f }
	last := func(at string) func(*batchv1.CronJob) {
		return edit(func(c *batchv1.CronJob) { c.Status.LastScheduleTime = &metav1.Time{Time: clock(at)} })
	}
	policy := func(p batchv1.ConcurrencyPolicy) func(*batchv1.CronJob) {
		return edit(func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = p })
	}
	deadline := func(seconds int64) func(*batchv1.CronJob) {
		return edit(func(c *batchv1.CronJob) { c.Spec.StartingDeadlineSeconds = &seconds })
	}
	scheduled := func(text string) func(*batchv1.CronJob) {
		return edit(func(c *batchv1.CronJob) { c.Spec.Schedule = text })
	}
	deleted := edit(func(c *batchv1.CronJob) { c.DeletionTimestamp = &metav1.Time{Time: testNow} })
	suspend := edit(func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) })
	manual := func(j *batchv1.Job) { j.Name, j.Annotations = "manual", nil }
	complete, failed := ended(batchv1.JobComplete), ended(batchv1.JobFailed)
	type edits = []func(*batchv1.CronJob)
	for name, c := range map[string]struct {
		cron edits
		jobs []*batchv1.Job
		want string
	}{
		"its time has come":     {nil, nil, "create 12:00, active [12:00(new)], last 12:00, wake 12:10"},
		"its time has not come": {edits{last("12:00")}, nil, "wake 12:10"},
		"only the latest time": {edits{last("10:00")}, nil,
			"create 12:00, active [12:00(new)], last 12:00, wake 12:10"},
		"it has never run": {edits{edit(func(c *batchv1.CronJob) {
			c.Status.LastScheduleTime, c.CreationTimestamp = nil, metav1.NewTime(clock("11:30"))
		})}, nil, "create 12:00, active [12:00(new)], last 12:00, wake 12:10"},
		"a job that the status does not know is not deleted": {edits{last("11:50"), edit(func(c *batchv1.CronJob) {
			c.Spec.FailedJobsHistoryLimit = new(int32(0))
		})}, []*batchv1.Job{testJob("12:00", failed)}, "active [], last 12:00, wake 12:10"},
		"it is suspended": {edits{suspend}, nil, ""},
		"it is being deleted": {edits{deleted}, []*batchv1.Job{testJob("11:00", failed), testJob("11:10",
			failed)}, ""},
		"the deadline is past": {edits{deadline(29)}, nil, "wake 12:10"},
		"the deadline is not past": {edits{deadline(31)}, nil,
			"create 12:00, active [12:00(new)], last 12:00, wake 12:10"},
		"the schedule is invalid":  {edits{scheduled("x")}, nil, "event UnparseableSchedule"},
		"the schedule has a zone":  {edits{scheduled("TZ=UTC * * * * *")}, nil, "event UnparseableSchedule"},
		"the schedule never comes": {edits{scheduled("0 0 30 2 *")}, nil, "event InvalidSchedule"},
		"every hour from the last": {edits{scheduled("@every 1h"), last("11:01")}, nil, "wake 12:01"},
		"every minute, missed 110": {edits{scheduled("@every 1m"), last("10:10")}, nil,
			"create 12:00, active [12:00(new)], last 12:00, event TooManyMissedTimes, wake 12:01"},
		"missed 121": {edits{scheduled("* * * * *"), last("09:59")}, nil,
			"create 12:00, active [12:00(new)], last 12:00, event TooManyMissedTimes, wake 12:01"},
		"missed 121 with a deadline": {edits{scheduled("* * * * *"), last("09:59"), deadline(7200)}, nil,
			"create 12:00, active [12:00(new)], last 12:00, wake 12:01"},
		"a job exists": {edits{running(testJob("11:50"))}, []*batchv1.Job{testJob("11:50")},
			"create 12:00, active [11:50 12:00(new)], last 12:00, wake 12:10"},
		"forbid with a job": {edits{policy(batchv1.ForbidConcurrent), running(testJob("11:50"))},
			[]*batchv1.Job{testJob("11:50")}, "event JobAlreadyActive, wake 12:10"},
		"forbid with a finished job": {edits{policy(batchv1.ForbidConcurrent), running(testJob("11:50"))},
			[]*batchv1.Job{testJob("11:50", failed)},
			"create 12:00, active [12:00(new)], last 12:00, event SawCompletedJob, wake 12:10"},
		"forbid with a job that the status does not know": {edits{policy(batchv1.ForbidConcurrent)},
			[]*batchv1.Job{testJob("11:50")}, "active [11:50], last 11:50, event JobAlreadyActive, wake 12:10"},
		"replace a job": {edits{policy(batchv1.ReplaceConcurrent), running(testJob("11:50"))},
			[]*batchv1.Job{testJob("11:50")},
			"delete 11:50, create 12:00, active [12:00(new)], last 12:00, wake 12:10"},
		"a job gets its uid": {edits{last("12:00"), edit(func(c *batchv1.CronJob) {
			c.Status.Active = append(c.Status.Active, reference(testJob("12:00")))
		})}, []*batchv1.Job{testJob("12:00")}, "active [12:00], last 12:00, wake 12:10"},
		"the controller was killed after the job was created": {nil, []*batchv1.Job{testJob("12:00")},
			"active [12:00], last 12:00, wake 12:10"},
		"a job went missing": {edits{last("12:00"), running(testJob("11:50"))}, nil,
			"active [], last 12:00, event MissingJob, wake 12:10"},
		"a job completes": {edits{last("12:00"), running(testJob("11:50"))}, []*batchv1.Job{testJob("11:50", complete)},
			"active [], last 12:00, success 11:51, event SawCompletedJob, wake 12:10"},
		"a job was created by hand": {edits{last("12:00"), policy(batchv1.ForbidConcurrent)},
			[]*batchv1.Job{testJob("11:50", manual)}, "event UnexpectedJob, wake 12:10"},
		"a job that was created by hand completes": {edits{last("12:00")},
			[]*batchv1.Job{testJob("11:50", complete, manual)}, "active [], last 12:00, success 11:51, wake 12:10"},
		"old failed jobs go": {edits{last("12:00")}, []*batchv1.Job{
			testJob("11:00", failed), testJob("11:20", failed), testJob("11:10", failed),
		}, "delete 11:00, delete 11:10, wake 12:10"},
		"old jobs of a suspended cron job go": {
			edits{suspend, edit(func(c *batchv1.CronJob) { c.Spec.SuccessfulJobsHistoryLimit = new(int32(0)) })},
			[]*batchv1.Job{testJob("11:00", complete), testJob("11:10", failed)},
			"delete 11:00, active [], last 11:50, success 11:01"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := Input{Now: testNow, CronJob: testCronJob(c.cron...), Jobs: c.jobs, Location: time.UTC}
			before := in.CronJob.DeepCopy()
			got := describe(Decide(in))
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			slices.Reverse(c.jobs)
			if again := describe(Decide(in)); again != got {
				t.Errorf("got %s with the jobs in reverse order", again)
			}
			if before.String() != in.CronJob.String() {
				t.Error("Decide modified the cron job")
			}
		})
	}
}

// TestChangedScheduleHasMissedNothing checks that a new schedule starts with its next time.
func TestChangedScheduleHasMissedNothing(t *testing.T) {
	t.Parallel()
	decide := func(schedule, last, changed string, now time.Time) workloads.Decision[batchv1.CronJobStatus] {
		cron := testCronJob(func(cron *batchv1.CronJob) {
			cron.Spec.Schedule, cron.Status.LastScheduleTime = schedule, &metav1.Time{Time: clock(last)}
		})
		d := Decide(Input{Now: now, CronJob: cron, Location: time.UTC, ScheduleChanged: clock(changed)})
		d.Status = nil
		return d
	}
	for name, c := range map[string]struct{ schedule, last, changed, want string }{
		"earlier on this day":     {"0 11 * * *", "10:00", "11:30", "wake 11:00"},
		"at the time":             {"*/10 * * * *", "11:50", "12:00", "wake 12:10"},
		"before the time":         {"*/10 * * * *", "11:50", "11:59", "create 12:00, wake 12:10"},
		"a run since the change":  {"*/10 * * * *", "11:40", "11:30", "create 12:00, wake 12:10"},
		"not missed but too many": {"* * * * *", "08:00", "11:59", "create 12:00, wake 12:01"},
		"the interval goes on":    {"@every 1h", "10:50", "11:55", "wake 12:50"},
	} {
		d := decide(c.schedule, c.last, c.changed, testNow)
		if got := describe(d); got != c.want || !d.Wake.After(testNow) {
			t.Errorf("%s: got %s at %v, want %s", name, got, d.Wake, c.want)
		}
	}
	tomorrow := clock("11:00").AddDate(0, 0, 1)
	if d := decide("0 11 * * *", "10:00", "11:30", tomorrow); len(d.Writes) != 1 {
		t.Errorf("got %s, want a job", describe(d))
	}
}

func TestScheduleDiffers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*batchv1.CronJobSpec)
		want bool
	}{
		"schedule":          {func(s *batchv1.CronJobSpec) { s.Schedule = "@hourly" }, true},
		"time zone":         {func(s *batchv1.CronJobSpec) { s.TimeZone = new("Etc/GMT+1") }, true},
		"time zone removed": {func(s *batchv1.CronJobSpec) { s.TimeZone = nil }, true},
		"same time zone":    {func(s *batchv1.CronJobSpec) { s.TimeZone = new("Etc/UTC") }, false},
		"suspended":         {func(s *batchv1.CronJobSpec) { s.Suspend = new(true) }, false},
	} {
		old := testCronJob(func(cron *batchv1.CronJob) { cron.Spec.TimeZone = new("Etc/UTC") })
		next := old.DeepCopy()
		c.edit(&next.Spec)
		if got := ScheduleDiffers(old, next); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestOldJobsGoBeforeTheNewOne: a quota for Jobs would otherwise reject the new one for ever.
func TestOldJobsGoBeforeTheNewOne(t *testing.T) {
	t.Parallel()
	cron := testCronJob(func(cron *batchv1.CronJob) { cron.Spec.FailedJobsHistoryLimit = new(int32(0)) })
	d := Decide(Input{Now: testNow, CronJob: cron, Location: time.UTC,
		Jobs: []*batchv1.Job{testJob("11:50", ended(batchv1.JobFailed))}})
	if want := "delete 11:50, create 12:00, "; !strings.HasPrefix(describe(d), want) {
		t.Errorf("got %s, want %s…", describe(d), want)
	}
}

func TestNewJob(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("Somewhere", 3600)
	c := testCronJob(func(c *batchv1.CronJob) { c.Spec.TimeZone = new("Some/Where") })
	d := Decide(Input{Now: testNow, CronJob: c, Location: zone})
	job, ok := d.Writes[0].Object.(*batchv1.Job)
	if !ok || job.Name != "c-29454480" || job.Namespace != "ns" || job.Labels["a"] != "b" ||
		job.Annotations["c"] != "d" {
		t.Fatalf("job %+v", job)
	}
	if at := job.Annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"]; at != "2026-01-01T13:00:00+01:00" {
		t.Errorf("scheduled time %s", at)
	}
	if ref := metav1.GetControllerOf(job); ref == nil || ref.Kind != "CronJob" || ref.UID != c.UID {
		t.Errorf("owner %+v", ref)
	}
	if c.Spec.JobTemplate.Annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"] != "" {
		t.Error("the template was modified")
	}
}

func TestTimeZone(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("Somewhere", 5*3600)
	c := testCronJob(func(c *batchv1.CronJob) { c.Spec.TimeZone, c.Spec.Schedule = new("Some/Where"), "30 18 * * *" })
	d := Decide(Input{Now: testNow, CronJob: c, Location: zone})
	if want := clock("13:30"); !d.Wake.Equal(want) {
		t.Errorf("wakes at %v, want %v", d.Wake.UTC(), want)
	}
	d = Decide(Input{Now: testNow, CronJob: c, Location: time.UTC, LocationError: errors.New("unknown time zone")})
	if len(d.Writes) != 0 || len(d.Events) != 1 || d.Events[0].Reason != "UnknownTimeZone" ||
		d.Events[0].Message != `invalid timeZone: "Some/Where": unknown time zone` {
		t.Errorf("decision %+v", d)
	}
}

// TestDaylightSaving documents what the parser does, which is also upstream's: a time that a day does not have is
// skipped, and one that a day has twice comes twice.
func TestDaylightSaving(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for start, want := range map[string]string{
		"2026-03-28T12:00:00+01:00": "2026-03-30T02:30:00+02:00", // 02:30 is skipped on the 29th
		"2026-10-24T12:00:00+02:00": "2026-10-25T02:30:00+02:00",
		"2026-10-25T02:30:00+02:00": "2026-10-25T02:30:00+01:00",
	} {
		at, err := time.Parse(time.RFC3339, start)
		if err != nil {
			t.Fatal(err)
		}
		times, err := parse("30 2 * * *", zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := times.next(at).Format(time.RFC3339); got != want {
			t.Errorf("after %s: %s, want %s", start, got, want)
		}
	}
}

func TestNameOfForeignJobSkipsTheTime(t *testing.T) {
	t.Parallel()
	in := Input{Now: testNow, CronJob: testCronJob(), Location: time.UTC}
	create := Decide(in).Writes[0]
	for err, want := range map[error]string{
		apierrors.NewAlreadyExists(schema.GroupResource{}, "c-1"): "active [], last 12:00",
		errors.New("quota exceeded"):                              "",
	} {
		in.WriteError = &workloads.WriteError{Write: create, Err: err}
		if got := describe(Decide(in)); got != want {
			t.Errorf("%v: got %s, want %s", err, got, want)
		}
	}
}
