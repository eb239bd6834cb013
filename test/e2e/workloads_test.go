package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

const threeReplicas = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: NS}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - {name: c, image: "berth/testbox:1", args: [sleep]}
`

// workload waits until a workload of the test meets cond, and decodes its object.
func workload[T any](s *Namespace, kind, name, what string, cond func(T) bool) (found nodeapi.Workload, object T) {
	s.t.Helper()
	var lastErr error
	err := hosts.WaitFor(s.t.Context(), fmt.Sprintf("%s %s to be %s", kind, name, what), func() (bool, error) {
		list, err := s.Client.Workloads(s.t.Context(), nodeapi.WorkloadsRequest{Namespace: s.ns})
		for _, w := range list {
			if w.Kind == kind && w.Name == name {
				object = *new(T)
				found = w
				return err == nil && json.Unmarshal(w.Object, &object) == nil && cond(object), nil
			}
		}
		lastErr = err // retried
		return false, nil
	})
	if err != nil {
		s.t.Fatalf("%v: %s %v", err, found.Object, lastErr)
	}
	return found, object
}

func complete(d appsv1.Deployment) bool {
	n := d.Status
	return n.ObservedGeneration == d.Generation && n.UpdatedReplicas == *d.Spec.Replicas &&
		n.Replicas == n.UpdatedReplicas && n.AvailableReplicas == n.Replicas &&
		(n.TerminatingReplicas == nil || *n.TerminatingReplicas == 0)
}

// containerIDs returns the container IDs of the running pods of the test, by the UID of the pod.
func (s *Namespace) containerIDs() map[string]string {
	s.t.Helper()
	list, err := s.Client.Pods(s.t.Context(), nodeapi.PodsRequest{Namespace: s.ns})
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]string{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			out[string(p.UID)] = status(p, "c").ContainerID
		}
	}
	return out
}

// waitNoPods waits until the test has no pods.
func (s *Namespace) waitNoPods() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), deletionTimeout)
	defer cancel()
	if err := s.watch(ctx, func(_ nodeapi.PodEvent, pods map[string]*corev1.Pod) bool {
		return pods != nil && len(pods) == 0
	}); err != nil {
		s.t.Fatal(err)
	}
}

// TestDeploymentFromFile rolls out a Deployment of a file, updates it, rolls it back, scales it, kills the agent and
// deletes the file.
func TestDeploymentFromFile(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Put("web", threeReplicas)
		workload(s, "Deployment", "web", "complete", complete)
		before := s.containerIDs()
		if len(before) != 3 {
			t.Fatalf("%d pods run", len(before))
		}
		s.KillAndRestartAgent()
		workload(s, "Deployment", "web", "complete", complete)
		if after := s.containerIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("a restart of the agent changed the pods from %v to %v", before, after)
		}

		s.Put("web", strings.Replace(threeReplicas, "testbox:1", "testbox:user", 1))
		_, d := workload(s, "Deployment", "web", "updated", func(d appsv1.Deployment) bool {
			return complete(d) && d.Annotations["deployment.kubernetes.io/revision"] == "2"
		})
		if n := len(s.containerIDs()); n != 3 {
			t.Errorf("%d pods run after the update: %+v", n, d.Status)
		}
		s.contains("rollout history", s.Berth("rollout", "history", "-n", s.ns, "deployment/web"),
			"berth/testbox:1", "berth/testbox:user")

		s.Berth("rollout", "undo", "-n", s.ns, "deployment/web")
		s.Berth("scale", "-n", s.ns, "deployment/web", "--replicas", "2")
		w, _ := workload(s, "Deployment", "web", "rolled back", func(d appsv1.Deployment) bool {
			return complete(d) && *d.Spec.Replicas == 2 && d.Spec.Template.Spec.Containers[0].Image == "berth/testbox:1"
		})
		if len(w.Overrides) != 2 {
			t.Errorf("unexpected overrides %v", w.Overrides)
		}
		s.contains("events", s.Berth("events", "-n", s.ns), "ScalingReplicaSet", "SuccessfulCreate")
		before = s.containerIDs()
		s.KillAndRestartAgent()
		if w, _ = workload(s, "Deployment", "web", "complete", complete); len(w.Overrides) != 2 {
			t.Errorf("overrides after a restart: %v", w.Overrides)
		}
		if after := s.containerIDs(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("a restart of the agent changed the pods from %v to %v", before, after)
		}

		s.Put("web", strings.Replace(threeReplicas, "replicas: 3", "replicas: 1", 1))
		w, _ = workload(s, "Deployment", "web", "scaled by its file", func(d appsv1.Deployment) bool {
			return complete(d) && *d.Spec.Replicas == 1
		})
		if len(w.Overrides) != 0 {
			t.Errorf("overrides after a change of the file: %v", w.Overrides)
		}
		s.Put("web", strings.NewReplacer("replicas: 3", "replicas: 1", "testbox:1", "missing:1").Replace(threeReplicas))
		s.waitWhy("deployment/web", "1 of 1 pods are ready", // the old one
			"ImagePull", `container "c"`, "DeletePod")
		s.contains("describe", s.Berth("describe", "-n", s.ns, "deployment/web"), "1 desired | 1 updated | 2 total",
			"berth/missing:1", "ReplicaSets:", "ScalingReplicaSet")
		s.Remove("web")
		s.waitNoPods()
	})
}

// TestJobFromFile runs an Indexed Job of a file to completion, and restarts the agent.
func TestJobFromFile(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Put("count", `apiVersion: batch/v1
kind: Job
metadata: {name: count, namespace: NS}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: "berth/testbox:1", args: [exit, "0"]}
`)
		finished := func(j batchv1.Job) bool { return j.Status.CompletionTime != nil }
		_, j := workload(s, "Job", "count", "finished", finished)
		if j.Status.CompletedIndexes != "0-2" || j.Status.Succeeded != 3 {
			t.Errorf("unexpected status %+v", j.Status)
		}
		pods := func() (names []string) {
			list, err := s.Client.Pods(t.Context(), nodeapi.PodsRequest{Namespace: s.ns})
			if err != nil {
				t.Fatal(err)
			}
			for i := range list.Items {
				names = append(names, list.Items[i].Name+" "+string(list.Items[i].Status.Phase))
			}
			return names
		}
		before := pods()
		s.KillAndRestartAgent()
		workload(s, "Job", "count", "finished", finished)
		if after := pods(); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("a restart of the agent changed the pods from %v to %v", before, after)
		}
		s.Remove("count")
		s.waitNoPods()
	})
}
