package cronjob

import (
	"math/rand/v2"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

// TestSim runs random CronJobs in a model world: Jobs finish late or never, the CronJob is suspended, observations are
// late, writes fail, and the controller is killed between them. The invariants of the package comment hold.
func TestSim(t *testing.T) {
	t.Parallel()
	seeds := 80
	if testing.Short() {
		seeds = 40
	}
	workloadstest.RunSeeds(t, seeds, func(t *testing.T, rng *rand.Rand) {
		t.Helper()
		w := newWorld(t, rng)
		for range 200 {
			w.step()
		}
		w.settle()
	})
}

type world struct {
	t        *testing.T
	rng      *rand.Rand
	server   *workloadstest.Server
	executor *workloadstest.Executor
	calm     bool // no failures any more
	policy   batchv1.ConcurrencyPolicy
	deadline *int64
	created  map[string]bool
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{t: t, rng: rng, created: map[string]bool{}}
	w.server = workloadstest.NewServer(rng, testNow)
	w.server.OnChange = func(old, current workloads.Object) {
		if job, ok := current.(*batchv1.Job); ok && old == nil {
			w.checkCreated(job)
		}
	}
	w.server.Reject = func(workloads.Write) error {
		if !w.calm && rng.IntN(20) == 0 {
			return apierrors.NewInternalError(apierrors.NewBadRequest("rejected by the test"))
		}
		return nil
	}
	c := testCronJob()
	c.Spec.ConcurrencyPolicy = []batchv1.ConcurrencyPolicy{
		batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent,
	}[rng.IntN(3)]
	w.policy = c.Spec.ConcurrencyPolicy
	c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = new(rng.Int32N(3)), new(rng.Int32N(3))
	if rng.IntN(2) == 0 {
		w.deadline = new(rng.Int64N(900) + 60)
		c.Spec.StartingDeadlineSeconds = w.deadline
	}
	if _, err := w.server.Create(c); err != nil {
		t.Fatal(err)
	}
	w.executor = workloadstest.NewExecutor(w.server, rng)
	w.executor.Kill = func() bool { return !w.calm && rng.IntN(10) == 0 }
	return w
}

func (w *world) cronJob() *batchv1.CronJob {
	c, found := workloadstest.Get[*batchv1.CronJob](w.server, "ns", "c")
	if !found {
		w.t.Fatal("the cron job is gone")
	}
	return c
}

func (w *world) sync() time.Time {
	wake, err := workloadstest.Sync(w.executor, "ns", "c",
		func(c *batchv1.CronJob, failed *workloads.WriteError) workloads.Decision[batchv1.CronJobStatus] {
			out := Decide(Input{Now: w.server.Now, CronJob: c, WriteError: failed, Location: time.UTC,
				Jobs: workloadstest.ObservedList[*batchv1.Job](w.executor.View)})
			w.check(c, out)
			return out
		})
	if err != nil && w.calm {
		w.t.Fatalf("sync without failures: %v", err)
	}
	return wake
}

func (w *world) step() {
	switch n := w.rng.IntN(20); {
	case n < 9:
		w.sync()
	case n < 11:
		w.executor.View.Advance(w.rng)
	case n < 15:
		w.server.Now = w.server.Now.Add(time.Duration(w.rng.IntN(900)) * time.Second)
	case n == 15:
		w.must(workloadstest.Edit(w.server, "ns", "c", func(c *batchv1.CronJob) {
			c.Spec.Suspend = new(w.rng.IntN(3) == 0)
		}))
	default:
		if jobs := workloadstest.List[*batchv1.Job](w.server); len(jobs) > 0 {
			w.finish(jobs[w.rng.IntN(len(jobs))])
		}
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) finish(job *batchv1.Job) {
	w.must(workloadstest.Edit(w.server, job.Namespace, job.Name, func(job *batchv1.Job) {
		if job.Status.StartTime == nil {
			job.Status.StartTime = &metav1.Time{Time: w.server.Now}
		} else if finished(job) == "" {
			ended([]batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed}[w.rng.IntN(2)])(job)
		}
	}))
}

// settle checks that the CronJob goes on without failures: a Job is created when its time comes.
func (w *world) settle() {
	w.calm = true
	w.must(workloadstest.Edit(w.server, "ns", "c", func(c *batchv1.CronJob) { c.Spec.Suspend = new(false) }))
	for range 3 {
		for range 8 {
			for _, job := range workloadstest.List[*batchv1.Job](w.server) {
				w.finish(job)
			}
			w.executor.View.CatchUp()
			w.sync()
		}
		w.executor.View.CatchUp()
		wake := w.sync()
		if want := w.server.Now.Truncate(10 * time.Minute).Add(10 * time.Minute); !wake.Equal(want) {
			w.t.Errorf("wakes at %v, want %v", wake, want)
		}
		w.server.Now = wake
		w.sync()
		c := w.cronJob()
		if at := c.Status.LastScheduleTime; at == nil || !at.Time.Equal(wake) {
			w.t.Errorf("no job at %v: %+v", wake, c.Status)
		}
	}
	counts := map[batchv1.JobConditionType]int32{}
	for _, job := range workloadstest.List[*batchv1.Job](w.server) {
		counts[finished(job)]++
	}
	spec := w.cronJob().Spec
	if counts[batchv1.JobComplete] > *spec.SuccessfulJobsHistoryLimit ||
		counts[batchv1.JobFailed] > *spec.FailedJobsHistoryLimit {
		w.t.Errorf("C5: %v finished jobs are left", counts)
	}
}

// checkCreated checks a Job that was created against what has really happened.
func (w *world) checkCreated(job *batchv1.Job) {
	if w.created[job.Name] {
		w.t.Errorf("C1: job %s was created twice", job.Name)
	}
	w.created[job.Name] = true
	for _, other := range workloadstest.List[*batchv1.Job](w.server) {
		if w.policy != batchv1.AllowConcurrent && other.Name != job.Name && finished(other) == "" {
			w.t.Errorf("C2: job %s was created while %s runs, policy %s", job.Name, other.Name, w.policy)
		}
	}
}

// check checks a decision.
func (w *world) check(c *batchv1.CronJob, d workloads.Decision[batchv1.CronJobStatus]) {
	for _, write := range d.Writes {
		job, _ := write.Object.(*batchv1.Job)
		if write.Verb == workloads.Delete {
			w.checkDeleted(c, job)
			continue
		}
		at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
		w.must(err)
		late := w.server.Now.Sub(at)
		switch {
		case *c.Spec.Suspend, late < 0:
			w.t.Errorf("C3: job of %v at %v, suspended %v", at, w.server.Now, *c.Spec.Suspend)
		case w.deadline != nil && late > time.Duration(*w.deadline)*time.Second:
			w.t.Errorf("C3: job of %v is %v late", at, late)
		case at.Minute()%10 != 0 || late >= 10*time.Minute:
			w.t.Errorf("C4: job of %v at %v", at, w.server.Now)
		}
	}
}

func (w *world) checkDeleted(c *batchv1.CronJob, job *batchv1.Job) {
	end := finished(job)
	if end == "" {
		if w.policy != batchv1.ReplaceConcurrent {
			w.t.Errorf("C2: unfinished job %s deleted, policy %s", job.Name, w.policy)
		}
		return
	}
	limit := *c.Spec.SuccessfulJobsHistoryLimit
	if end == batchv1.JobFailed {
		limit = *c.Spec.FailedJobsHistoryLimit
	}
	newer := int32(0)
	for _, other := range workloadstest.ObservedList[*batchv1.Job](w.executor.View) {
		if finished(other) == end && (other.Status.StartTime.After(job.Status.StartTime.Time) ||
			other.Status.StartTime.Equal(job.Status.StartTime) && other.Name > job.Name) {
			newer++
		}
	}
	if newer < limit {
		w.t.Errorf("C5: job %s deleted with %d newer ones, limit %d", job.Name, newer, limit)
	}
}
