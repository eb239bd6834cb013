package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

const statefulSetFile = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: NS}
spec:
  replicas: 3
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: c, image: "berth/testbox:1", args: [sleep]}]
`

const daemonSetFile = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: logs, namespace: NS}
spec:
  selector: {matchLabels: {app: logs}}
  template:
    metadata: {labels: {app: logs}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: c, image: "berth/testbox:1", args: [sleep]}]
`

// cronJobFile returns a CronJob that starts a Job each minute.
func cronJobFile(name string, deadline int) string {
	return fmt.Sprintf(`apiVersion: batch/v1
kind: CronJob
metadata: {name: %s, namespace: NS}
spec:
  schedule: "* * * * *"
  startingDeadlineSeconds: %d
  successfulJobsHistoryLimit: 100
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: c, image: "berth/testbox:1", args: [exit, "0"]}]
`, name, deadline)
}

// cronJobAt is the name of the Job of a CronJob for a minute.
func cronJobAt(name string, at time.Time) string { return fmt.Sprintf("%s-%d", name, at.Unix()/60) }

func statefulSetComplete(s appsv1.StatefulSet) bool {
	n := s.Status
	return n.ObservedGeneration == s.Generation && n.ReadyReplicas == 3 && n.UpdatedReplicas == 3 &&
		n.CurrentRevision == n.UpdateRevision
}

func daemonSetComplete(s appsv1.DaemonSet) bool {
	n := s.Status
	return n.ObservedGeneration == s.Generation && n.NumberReady == 1 && n.UpdatedNumberScheduled == 1
}

func jobComplete(j batchv1.Job) bool {
	return j.Status.CompletionTime != nil && j.Status.Succeeded == 1
}

// jobNames returns the names of the Jobs of the test that start with a prefix.
func (s *Namespace) jobNames(prefix string) (names []string) {
	s.t.Helper()
	list, err := s.Client.Workloads(s.t.Context(), nodeapi.WorkloadsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, w := range list {
		if w.Kind == "Job" && strings.HasPrefix(w.Name, prefix) {
			names = append(names, w.Name)
		}
	}
	return names
}

// loseOneMinute takes the power from the host, so that a minute begins without it, and boots it more than 10 s later.
// It returns that minute.
func (s *Namespace) loseOneMinute() time.Time {
	s.t.Helper()
	if err := s.Agent.Kill9(); err != nil {
		s.t.Fatal(err)
	}
	missed := time.Now().Truncate(time.Minute).Add(time.Minute)
	if err := s.Host.PowerLoss(); err != nil {
		s.t.Fatal(err)
	}
	ctx := s.t.Context()
	err := hosts.WaitFor(ctx, "the end of the starting deadline", func() (bool, error) {
		return time.Since(missed) > 11*time.Second, nil
	})
	err = errors.Join(err, s.Host.Restart(ctx), s.Agent.Start(ctx), s.Agent.WaitReady(ctx))
	if err != nil {
		s.t.Fatal(err)
	}
	return missed
}

// TestWorkloadKindsFromFiles runs a StatefulSet, a DaemonSet and CronJobs of files on one host through a power loss, a
// rollout in which the agent is killed, and the deletion of the files.
func TestWorkloadKindsFromFiles(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Put("late", cronJobFile("late", 3600))
		s.Put("strict", cronJobFile("strict", 10))
		s.Put("db", statefulSetFile)
		s.Put("logs", daemonSetFile)
		workload(s, "StatefulSet", "db", "complete", statefulSetComplete)
		workload(s, "DaemonSet", "logs", "complete", daemonSetComplete)
		started := func(name string) time.Time { return trueSince(s.Get(name), corev1.PodReady) }
		if a, b, c := started("db-0"), started("db-1"), started("db-2"); b.Before(a) || c.Before(b) {
			t.Errorf("pods of the StatefulSet became ready at %v, %v, %v", a, b, c)
		}
		uids := s.podUIDs("db-0", "db-1", "db-2")

		missed := s.loseOneMinute()
		workload(s, "Job", cronJobAt("late", missed), "complete", jobComplete)
		if names := s.jobNames("strict"); slices.Contains(names, cronJobAt("strict", missed)) {
			t.Errorf("a Job started after its deadline: %v", names)
		}
		workload(s, "StatefulSet", "db", "complete", statefulSetComplete)
		workload(s, "DaemonSet", "logs", "complete", daemonSetComplete)
		if after := s.podUIDs("db-0", "db-1", "db-2"); fmt.Sprint(after) != fmt.Sprint(uids) {
			t.Errorf("the power loss changed the pods from %v to %v", uids, after)
		}
		// The controller of CronJobs observes the end of the Job a moment after the status of the Job.
		waitFor(t, "the event SawCompletedJob", func() bool {
			return strings.Contains(s.Berth("describe", "-n", s.ns, "cronjob/late"), "SawCompletedJob")
		})
		s.contains("describe", s.Berth("describe", "-n", s.ns, "cronjob/late"), cronJobAt("late", missed),
			"SuccessfulCreate")
		s.contains("why", s.Berth("why", "-n", s.ns, "cronjob/late"), "CreateJob")

		s.updateKinds()
		s.KillAndRestartAgent()
		workload(s, "StatefulSet", "db", "updated", func(w appsv1.StatefulSet) bool {
			return statefulSetComplete(w) && w.Spec.Template.Spec.Containers[0].Image == "berth/testbox:user"
		})
		workload(s, "DaemonSet", "logs", "updated", func(w appsv1.DaemonSet) bool {
			return daemonSetComplete(w) && w.Spec.Template.Spec.Containers[0].Image == "berth/testbox:user"
		})
		for name, uid := range s.podUIDs("db-0", "db-1", "db-2") {
			if uid == uids[name] || status(s.Get(name), "c").Image == "" {
				t.Errorf("pod %s was not replaced", name)
			}
		}
		s.contains("describe", s.Berth("describe", "-n", s.ns, "sts/db"), "berth/testbox:user", "SuccessfulDelete",
			"db-2   1/1")
		workload(s, "Job", cronJobAt("late", missed), "complete", jobComplete)
		s.contains("describe", s.Berth("describe", "-n", s.ns, "cronjob/late"), // recorded before the agent was killed
			"Created job "+cronJobAt("late", missed))
		s.waitJob("strict", missed)

		for _, file := range []string{"late", "strict", "db", "logs"} {
			s.Remove(file)
		}
		s.waitNoPods()
		if names := s.jobNames(""); len(names) > 0 {
			t.Errorf("Jobs without their CronJobs: %v", names)
		}
	})
}

// updateKinds changes the image of the StatefulSet and the DaemonSet, after it has checked the plan of the first.
func (s *Namespace) updateKinds() {
	s.t.Helper()
	text := strings.Replace(statefulSetFile, "testbox:1", "testbox:user", 1)
	plan, err := s.Client.Plan(s.t.Context(), []byte(strings.ReplaceAll(text, "NS", s.ns)))
	if err != nil || len(plan.Workloads) != 1 {
		s.t.Fatalf("plan %+v: %v", plan, err)
	}
	var steps []string
	for _, step := range plan.Workloads[0].Steps {
		steps = append(steps, step.Action+" "+step.Pod+step.Rejection)
	}
	want := "DeletePod db-2, CreatePod db-2, DeletePod db-1, CreatePod db-1, DeletePod db-0, CreatePod db-0"
	if got := strings.Join(steps, ", "); got != want || plan.Workloads[0].Change != nodeapi.Update {
		s.t.Errorf("plan to %s by %s, want %s", plan.Workloads[0].Change, got, want)
	}
	s.Put("db", text)
	s.Put("logs", strings.Replace(daemonSetFile, "testbox:1", "testbox:user", 1))
	workload(s, "StatefulSet", "db", "rolling", func(w appsv1.StatefulSet) bool {
		return w.Status.UpdateRevision != w.Status.CurrentRevision
	})
}

// waitJob waits until a CronJob has completed a Job of another minute than the missed one, of which it has none.
func (s *Namespace) waitJob(name string, missed time.Time) {
	s.t.Helper()
	err := hosts.WaitFor(s.t.Context(), "a Job of "+name, func() (bool, error) {
		return len(s.jobNames(name+"-")) > 0, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	names := s.jobNames(name + "-")
	if slices.Contains(names, cronJobAt(name, missed)) {
		s.t.Errorf("a Job started after its deadline: %v", names)
	}
	workload(s, "Job", names[0], "complete", jobComplete)
}

// podUIDs returns the UIDs of pods by name.
func (s *Namespace) podUIDs(names ...string) map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, name := range names {
		out[name] = string(s.Get(name).UID)
	}
	return out
}

// trueSince returns when a condition of a pod became true.
func trueSince(p *corev1.Pod, kind corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
