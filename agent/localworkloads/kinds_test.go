package localworkloads

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
)

const setManifest = `apiVersion: apps/v1
kind: KIND
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "web:1"}]
`

// syncAll lets the reconciler decide and the agent delete pods until nothing changes. The time stays.
func (w *world) syncAll() {
	for range 20 {
		w.sync(false)
		for uid, pod := range w.pods {
			if pod.DeletionTimestamp != nil {
				delete(w.pods, uid)
				w.reconciler.PodDeleted(uid, w.now)
			}
		}
	}
}

// images returns the images of the pods that have not failed.
func (w *world) images() string {
	var out []string
	for _, pod := range w.pods {
		if pod.Status.Phase != corev1.PodFailed {
			out = append(out, pod.Spec.Containers[0].Image)
		}
	}
	return strings.Join(out, " ")
}

// failPods reports all pods as failed.
func (w *world) failPods() {
	for _, pod := range w.pods {
		pod.Status.Phase = corev1.PodFailed
		w.reconciler.PodObserved(pod, w.now)
	}
}

// TestFailedPodsAreReplacedAfterDelay checks the back-off of each kind: the replacement of a failed pod waits, except
// after an edit of the file. A restart of the agent keeps the pods.
func TestFailedPodsAreReplacedAfterDelay(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 0)
			write := func(image string) {
				text := strings.ReplaceAll(setManifest, "KIND", kind)
				w.files["web.yaml"] = strings.ReplaceAll(text, "web:1", image)
				w.reconciler.SetFiles(workloadsOf(t, w.files))
			}
			check := func(when, want string) {
				t.Helper()
				w.syncAll()
				if got := w.images(); got != want {
					t.Fatalf("%s: pods %q, want %q", when, got, want)
				}
			}
			write("web:1")
			check("after the creation", "web:1")
			w.restart()
			check("after a restart of the agent", "web:1")
			w.failPods()
			check("after a failure", "")
			w.now = w.now.Add(minFailureDelay)
			check("after the delay", "web:1")
			w.failPods()
			check("after the second failure", "")
			write("web:2")
			check("after an edit", "web:2")
			w.failPods()
			check("after a failure of the new pod", "")
			if kind != "DaemonSet" { // the template stays, so that the pods keep their ReplicaSet
				if err := w.reconciler.Scale(keyNamed(kind, "web"), 2, w.now); err != nil {
					t.Fatal(err)
				}
				check("after an edit that keeps the template", map[string]string{
					"Deployment": "web:2 web:2", "StatefulSet": "web:2", // the second one when the first one is ready
				}[kind])
			}
			delete(w.files, "web.yaml")
			w.reconciler.SetFiles(nil)
			check("after the removal of the file", "")
			if len(w.reconciler.Pods()) > 0 || !w.reconciler.Empty() {
				t.Errorf("left: %v", w.reconciler.Views())
			}
			if len(w.reconciler.failures) > 0 || len(w.reconciler.failed) > 0 {
				t.Errorf("failures of deleted objects: %v, %v", w.reconciler.failures, w.reconciler.failed)
			}
		})
	}
}

// TestCronJob checks that each schedule makes one Job, also if the agent is killed, and that a schedule that was missed
// while the agent was not running is made up for within startingDeadlineSeconds only.
func TestCronJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.files["tick.yaml"] = `apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "*/10 * * * *"
  startingDeadlineSeconds: 60
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: c, image: "tick:1"}]
`
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	jobs := func(when string, want int) {
		t.Helper()
		w.syncAll()
		if got := list[*batchv1.Job](w.reconciler.store, ""); len(got) != want {
			t.Fatalf("%s: %d Jobs, want %d", when, len(got), want)
		}
	}
	jobs("before the first schedule", 0)
	w.now = w.now.Add(10 * time.Minute)
	jobs("at the first schedule", 1)
	w.restart()
	jobs("after a restart", 1)
	w.now = w.now.Add(10*time.Minute + 30*time.Second)
	w.restart()
	jobs("30 s after a missed schedule", 2)
	w.now = w.now.Add(11*time.Minute + 30*time.Second)
	w.restart()
	jobs("2 min after a missed schedule", 2)
}

// TestChangedScheduleOfFile checks that a new schedule starts with its next time, also if the agent restarts meanwhile.
func TestChangedScheduleOfFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	set := func(schedule string) {
		w.files["tick.yaml"] = `apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "` + schedule + `"
  timeZone: Etc/UTC
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "tick:1"}]}}}}
`
		w.reconciler.SetFiles(workloadsOf(t, w.files))
	}
	jobs := func(when string, want int) {
		t.Helper()
		w.syncAll()
		if got := list[*batchv1.Job](w.reconciler.store, ""); len(got) != want {
			t.Fatalf("%s: %d Jobs, want %d", when, len(got), want)
		}
	}
	set("0 0 1 1 *")
	w.now = w.now.Truncate(time.Hour).Add(time.Hour)
	jobs("before the change", 0)
	w.now = w.now.Add(15 * time.Minute)
	set("*/10 * * * *")
	jobs("after the change", 0)
	w.restart()
	jobs("after a restart", 0)
	w.now = w.now.Add(5 * time.Minute)
	jobs("at the next time", 1)
}

// TestEventsOfDecisionWhoseWriteFails checks that a decision that is made again after a failed write records each of
// its events once: the Job of the schedule has the name of a Job with a file of its own.
func TestEventsOfDecisionWhoseWriteFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	reasons := map[string]int{}
	w.reconciler.Record = func(ref corev1.ObjectReference, e workloads.Event) {
		if ref.Kind == "CronJob" {
			reasons[e.Reason]++
		}
	}
	w.files["tick.yaml"] = `apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "*/10 * * * *"
  timeZone: Etc/UTC
  concurrencyPolicy: Forbid
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "tick:1"}]}}}}
`
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	w.now = w.now.Truncate(time.Hour).Add(10 * time.Minute)
	w.syncAll()
	next := w.now.Add(10 * time.Minute)
	w.files["taken.yaml"] = fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: tick-%d}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: "other:1"}]}}}
`, next.Unix()/60)
	w.reconciler.SetFiles(workloadsOf(t, w.files))
	w.syncAll()
	w.now = next
	w.advanceWithoutFailure() // the pod runs
	w.advanceWithoutFailure() // the pod succeeds
	w.syncAll()
	cron := list[*batchv1.CronJob](w.reconciler.store, "")[0]
	if cron.Status.LastScheduleTime == nil || !cron.Status.LastScheduleTime.Time.Equal(next) ||
		len(cron.Status.Active) > 0 || cron.Status.LastSuccessfulTime == nil {
		t.Errorf("got %+v, want the schedule skipped and the first Job successful", cron)
	}
	if reasons["SawCompletedJob"] != 1 || reasons["SuccessfulCreate"] != 1 {
		t.Errorf("got events %v, want the first Job created and completed once", reasons)
	}
}
