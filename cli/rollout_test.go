package cli

import (
	"context"
	"testing"
	"time"

	"berth/nodeapi"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"
)

// TestRolloutProgress checks that the progress of a rollout has an end for each update strategy, in the words of
// kubectl.
func TestRolloutProgress(t *testing.T) {
	t.Parallel()
	const unsupported = "rollout status is only available for RollingUpdate strategy type"
	stateful := func(change func(*appsv1.StatefulSet)) nodeapi.Workload {
		s := &appsv1.StatefulSet{ObjectMeta: object("default", "db", time.Hour)}
		s.Generation = 2
		s.Spec.Replicas = ptr.To[int32](3)
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
			Type:          appsv1.RollingUpdateStatefulSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](2)},
		}
		s.Status = appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 3, ReadyReplicas: 3, UpdatedReplicas: 1,
			CurrentReplicas: 2, CurrentRevision: "db-1", UpdateRevision: "db-2"}
		change(s)
		return nodeapi.Workload{Kind: "StatefulSet", Object: encodedObject(s)}
	}
	daemon := func(change func(*appsv1.DaemonSet)) nodeapi.Workload {
		s := &appsv1.DaemonSet{ObjectMeta: object("default", "agent", time.Hour)}
		s.Generation = 2
		s.Spec.UpdateStrategy.Type = appsv1.RollingUpdateDaemonSetStrategyType
		s.Status = appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1,
			NumberAvailable: 1}
		change(s)
		return nodeapi.Workload{Kind: "DaemonSet", Object: encodedObject(s)}
	}
	deployment := func(change func(*appsv1.Deployment)) nodeapi.Workload {
		d := &appsv1.Deployment{ObjectMeta: object("default", "web", time.Hour)}
		d.Generation = 2
		d.Spec.Replicas = ptr.To[int32](2)
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
		change(d)
		return nodeapi.Workload{Kind: "Deployment", Object: encodedObject(d)}
	}
	for _, tt := range []struct {
		name     string
		workload nodeapi.Workload
		text     string
		done     bool
		err      string
	}{
		{"a partition is complete", stateful(func(*appsv1.StatefulSet) {}),
			"partitioned roll out complete: 1 new pods have been updated...", true, ""},
		{"a partition is in progress", stateful(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Partition = ptr.To[int32](1)
		}), "Waiting for partitioned roll out to finish: 1 out of 2 new pods have been updated...", false, ""},
		{"a partition above the replicas", stateful(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate.Partition = ptr.To[int32](5)
			s.Status.UpdatedReplicas = 0
		}), "partitioned roll out complete: 0 new pods have been updated...", true, ""},
		{"pods of a StatefulSet are not ready", stateful(func(s *appsv1.StatefulSet) { s.Status.ReadyReplicas = 1 }),
			"Waiting for 2 pods to be ready...", false, ""},
		{"a StatefulSet is not observed", stateful(func(s *appsv1.StatefulSet) { s.Generation = 3 }),
			"Waiting for statefulset spec update to be observed...", false, ""},
		{"no partition, in progress", stateful(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = nil
		}), "waiting for statefulset rolling update to complete 1 pods at revision db-2...", false, ""},
		{"no partition, complete", stateful(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = nil
			s.Status.CurrentRevision, s.Status.CurrentReplicas = "db-2", 3
		}), "statefulset rolling update complete 3 pods at revision db-2...", true, ""},
		{"a StatefulSet with OnDelete", stateful(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
		}), "", true, unsupported},
		{"a DaemonSet with OnDelete", daemon(func(s *appsv1.DaemonSet) {
			s.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
			s.Status.UpdatedNumberScheduled = 0
		}), "", true, unsupported},
		{"a DaemonSet is not observed", daemon(func(s *appsv1.DaemonSet) { s.Generation = 3 }),
			"Waiting for daemon set spec update to be observed...", false, ""},
		{"a DaemonSet is being updated", daemon(func(s *appsv1.DaemonSet) { s.Status.UpdatedNumberScheduled = 0 }),
			`Waiting for daemon set "agent" rollout to finish: 0 out of 1 new pods have been updated...`, false, ""},
		{"a DaemonSet is not available", daemon(func(s *appsv1.DaemonSet) { s.Status.NumberAvailable = 0 }),
			`Waiting for daemon set "agent" rollout to finish: 0 of 1 updated pods are available...`, false, ""},
		{"a DaemonSet is complete", daemon(func(*appsv1.DaemonSet) {}),
			`daemon set "agent" successfully rolled out`, true, ""},
		{"a Deployment is being updated", deployment(func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 1 }),
			`Waiting for deployment "web" rollout to finish: 1 out of 2 new replicas have been updated...`, false, ""},
		{"a Deployment is complete", deployment(func(*appsv1.Deployment) {}),
			`deployment "web" successfully rolled out`, true, ""},
		{"a Job", nodeapi.Workload{Kind: "Job"}, "", false, "rollout status is not supported for a Job"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			text, done, err := rolloutProgress(tt.workload)
			failure := ""
			if err != nil {
				failure = err.Error()
			}
			if text != tt.text || done != tt.done || failure != tt.err {
				t.Errorf("got %q, done %v, error %q, want %q, done %v, error %q", text, done, failure, tt.text, tt.done,
					tt.err)
			}
		})
	}
}

// TestRolloutUndoOutput checks that a rollback to the current revision is reported as skipped.
func TestRolloutUndoOutput(t *testing.T) {
	t.Parallel()
	h := fakeAgent()
	h.EditWorkload = func(_ context.Context, req nodeapi.WorkloadEdit) (nodeapi.WorkloadEditResult, error) {
		return nodeapi.WorkloadEditResult{Revision: 2, Skipped: req.Revision == 2}, nil
	}
	path := socket(t, h)
	for revision, want := range map[string]string{
		"0": "deployment.apps/web rolled back\n",
		"2": "deployment.apps/web skipped rollback (current template already matches revision 2)\n",
	} {
		args := []string{"rollout", "undo", "deployment/web", "--to-revision", revision}
		if stdout, stderr, code := run(t, path, invocation{args: args}); stdout != want || code != 0 {
			t.Errorf("revision %s: output %q, want %q, exit %d %s", revision, stdout, want, code, stderr)
		}
	}
}
