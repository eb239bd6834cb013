package control

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestJob runs Jobs as kubectl makes them. Their pods end because the test says so.
func TestJob(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.finishPods(t)
	if out := s.Kubectl(t, "create", "job", "pi", "--image=example/pi"); strings.Contains(out, "Warning") {
		t.Errorf("kubectl create: got %q, want no warning", out)
	}
	s.waitForJob(t, "pi", "complete")
	s.checkField(t, "job/pi", `{.status.succeeded} {.status.active} {.status.conditions[*].type} `+
		`{.status.conditions[*].reason}`,
		"1  SuccessCriteriaMet Complete CompletionsReached CompletionsReached")
	s.checkField(t, "pods", "{.items[*].metadata.finalizers}", "")
	waitForOutput(t, s, "job-controller job-controller", "get", "events", "--field-selector",
		"involvedObject.kind=Job,involvedObject.name=pi", "-o", "jsonpath={.items[*].source.component}")
	if out := s.Kubectl(t, "describe", "job", "pi"); !strings.Contains(out, "Created pod: pi-") ||
		!strings.Contains(out, "Job completed") {
		t.Errorf("kubectl describe: got\n%s", out)
	}
	s.Kubectl(t, "delete", "job", "pi", "--cascade=foreground", "--timeout=4m")
	s.checkField(t, "pods", "{.items[*].metadata.name}", "")
}

func TestIndexedJob(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.finishPods(t)
	s.Apply(t, `apiVersion: batch/v1
kind: Job
metadata: {name: many}
spec:
  completions: 5
  parallelism: 2
  completionMode: Indexed
  backoffLimitPerIndex: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: example/work, command: [fail-at-3]}]
`)
	s.waitForJob(t, "many", "failed")
	s.checkField(t, "job/many", "{.status.completedIndexes} {.status.failedIndexes} {.status.succeeded} "+
		"{.status.failed} {.status.conditions[*].reason}", "0-2,4 3 4 1 FailedIndexes FailedIndexes")
	s.checkField(t, "pods",
		`{.items[?(@.metadata.labels.batch\.kubernetes\.io/job-completion-index=="2")].spec.hostname}`,
		"many-2")
	s.checkField(t, "pods", "{.items[0].spec.containers[0].env[0].name}", "JOB_COMPLETION_INDEX")
}

func TestJobFailsAndExpires(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.finishPods(t)
	s.Apply(t, `apiVersion: batch/v1
kind: Job
metadata: {name: bad}
spec:
  backoffLimit: 0
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: example/work, command: [fail]}]
`)
	waitForOutput(t, s, "JobSuspended", "get", "job", "bad", "-o", "jsonpath={.status.conditions[*].reason}")
	s.checkField(t, "pods", "{.items[*].metadata.name}", "")
	s.Kubectl(t, "patch", "job", "bad", "-p", `{"spec":{"suspend":false}}`)
	s.waitForJob(t, "bad", "failed")
	s.checkField(t, "job/bad", "{.status.failed} {.status.conditions[*].type} {.status.conditions[*].reason}",
		"1 Suspended FailureTarget Failed JobResumed BackoffLimitExceeded BackoffLimitExceeded")
	s.Kubectl(t, "patch", "job", "bad", "-p", `{"spec":{"ttlSecondsAfterFinished":0}}`)
	s.Kubectl(t, "wait", "--for=delete", "job/bad", "--timeout=4m")
	waitForOutput(t, s, "", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}")
}

// TestManagedJob plays a queue controller: it changes the template of a suspended Job and writes the status.
func TestManagedJob(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Apply(t, `apiVersion: batch/v1
kind: Job
metadata: {name: queued}
spec:
  managedBy: example.com/queue
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: example/work, resources: {requests: {cpu: 1}}}]
`)
	patchTemplate := func(pod string) (string, error) {
		return s.TryKubectl(t, "", "patch", "job", "queued", "-p", `{"spec":{"template":{"spec":`+pod+`}}}`)
	}
	if out, err := patchTemplate(`{"nodeSelector":{"disk":"ssd"},"containers":[{"name":"c","resources":` +
		`{"requests":{"cpu":"2"}}}]}`); err != nil {
		t.Errorf("placement and resources: %v\n%s", err, out)
	}
	if out, err := patchTemplate(`{"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[` +
		`{"topologyKey":"zone","labelSelector":{"matchLabels":{"a":"b"}}}]}}}`); err == nil ||
		!strings.Contains(out, `spec.template.spec: Invalid value: "affinity.podAffinity": field is immutable`) {
		t.Errorf("pod affinity: %v\n%s", err, out)
	}
	patchStatus := func(status string) (string, error) {
		return s.TryKubectl(t, "", "patch", "job", "queued", "--subresource=status", "--type=merge", "-p",
			`{"status":`+status+`}`)
	}
	const (
		criteria = `{"type":"SuccessCriteriaMet","status":"True"}`
		complete = `{"type":"Complete","status":"True"}`
		times    = `"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:09Z"`
	)
	if out, err := patchStatus(`{` + times + `,"conditions":[` + complete + `]}`); err == nil || !strings.Contains(out,
		"cannot set Complete=True condition without the SuccessCriteriaMet=true condition") {
		t.Errorf("complete without criteria: %v\n%s", err, out)
	}
	if out, err := patchStatus(`{` + times + `,"conditions":[` + criteria + `,` + complete + `]}`); err != nil {
		t.Errorf("complete: %v\n%s", err, out)
	}
	if out, err := patchStatus(`{"conditions":[]}`); err == nil || !strings.Contains(out,
		"cannot disable the terminal Complete=True condition") {
		t.Errorf("no longer complete: %v\n%s", err, out)
	}
	s.Kubectl(t, "delete", "job", "queued", "--timeout=4m")
}

// TestOrphanedJobPod deletes a Job without its pod. The pod loses the finalizer, so that it can be deleted.
func TestOrphanedJobPod(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "create", "job", "pi", "--image=example/pi")
	const finalizers = "jsonpath={.items[*].metadata.finalizers}{.items[*].metadata.ownerReferences}"
	waitForOutput(t, s, `["batch.kubernetes.io/job-tracking"]`, "get", "pods", "-o",
		"jsonpath={.items[*].metadata.finalizers}")
	s.Kubectl(t, "delete", "job", "pi", "--cascade=orphan", "--timeout=4m")
	waitForOutput(t, s, "", "get", "pods", "-o", finalizers)
	s.checkField(t, "pods", "{.items[*].status.phase}", "Pending")
	s.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}

func TestCronJob(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.finishPods(t)
	// The time "every second" comes at once. Jobs are named by the minute, so that one or two are created.
	if out := s.Kubectl(t, "create", "cronjob", "tick", "--image=example/tick",
		"--schedule=@every 1s"); strings.Contains(
		out, "Warning") {
		t.Errorf("kubectl create: got %q, want no warning", out)
	}
	eventually(t, "a job to complete", func() (bool, string) {
		out := s.Kubectl(t, "get", "events", "-o", "jsonpath={.items[*].reason}", "--field-selector",
			"involvedObject.kind=CronJob,source=cronjob-controller")
		return strings.Contains(out, "SuccessfulCreate") && strings.Contains(out, "SawCompletedJob"), out
	})
	s.Kubectl(t, "patch", "cronjob", "tick", "-p", `{"spec":{"suspend":true}}`)
	if out := s.Kubectl(t, "describe", "cronjob", "tick"); !strings.Contains(out, "Created job tick-") ||
		!strings.Contains(out, "Saw completed job: tick-") || !strings.Contains(out, "@every 1s") {
		t.Errorf("kubectl describe: got\n%s", out)
	}
	eventually(t, "the times in the status", func() (bool, string) {
		out := s.Kubectl(t, "get", "cronjob", "tick", "-o", "jsonpath={.status.lastScheduleTime} "+
			"{.status.lastSuccessfulTime} {.status.active}")
		return len(strings.Fields(out)) == 2, out
	})
	if got := s.Kubectl(t, "get", "jobs", "-o",
		`jsonpath={.items[0].metadata.name} {.items[0].metadata.annotations}`); !strings.HasPrefix(
		got, "tick-2") || !strings.Contains(got, "batch.kubernetes.io/cronjob-scheduled-timestamp") {
		t.Errorf("job of the cron job: %s", got)
	}
	s.Kubectl(t, "create", "job", "by-hand", "--from=cronjob/tick")
	s.waitForJob(t, "by-hand", "complete")
	s.checkField(t, "job/by-hand", "{.metadata.ownerReferences[0].name} {.spec.template.spec.containers[0].image}",
		"tick example/tick")
	s.Kubectl(t, "delete", "cronjob", "tick", "--cascade=foreground", "--timeout=4m")
	// The Job by-hand does not block the deletion of its owner.
	waitForOutput(t, s, "", "get", "jobs,pods", "-o", "jsonpath={.items[*].metadata.name}")
}

func (s *Server) waitForJob(t *testing.T, name, condition string) {
	t.Helper()
	s.Kubectl(t, "wait", "--for=condition="+condition, "job/"+name, "--timeout=4m")
}

// checkField compares fields of what kubectl gets.
func (s *Server) checkField(t *testing.T, what, path, want string) {
	t.Helper()
	if got := s.Kubectl(t, "get", what, "-o", "jsonpath="+path); got != want {
		t.Errorf("%s of %s: got %q, want %q", path, what, got, want)
	}
}

// finishPods ends all pods of the namespace until the test ends. The command of a pod says whether it fails.
func (s *Server) finishPods(t *testing.T) {
	t.Helper()
	s.patchPodStatus(t, func(pod *corev1.Pod) string {
		if pod.Status.Phase != corev1.PodPending {
			return ""
		}
		switch strings.Join(pod.Spec.Containers[0].Command, " ") {
		case "fail", "fail-at-" + pod.Labels["batch.kubernetes.io/job-completion-index"]:
			return `{"status":{"phase":"Failed"}}`
		}
		return `{"status":{"phase":"Succeeded"}}`
	})
}
