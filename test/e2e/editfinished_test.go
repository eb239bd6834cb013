package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// finishedPods are pods that fail for different reasons, each with an edit of an image or a resource
// amount. edited is the expected state after the edit.
var finishedPods = []struct {
	name, spec, oldText, newText string
	phase                        corev1.PodPhase
	reason                       string
	edited                       func(*corev1.Pod) bool
}{
	{
		"rejected", "containers:\n" + box("c", "resources: {requests: {cpu: 1000}}", "sleep"),
		"cpu: 1000", "cpu: 10m", corev1.PodFailed, "OutOfcpu", podReady,
	},
	{
		"finished", "restartPolicy: Never\ncontainers:\n" + box("c", "", "exit 3"),
		"testbox:1", "testbox:user", corev1.PodFailed, "", func(p *corev1.Pod) bool {
			c := status(p, "c")
			return p.Status.Phase == corev1.PodFailed && c.State.Terminated != nil &&
				c.State.Terminated.ExitCode == 3 && strings.HasSuffix(c.Image, "testbox:user")
		},
	},
	{
		"late", "activeDeadlineSeconds: 20\nterminationGracePeriodSeconds: 1\ncontainers:\n" + box("c", "", "sleep"),
		"testbox:1", "testbox:user", corev1.PodFailed, "DeadlineExceeded", func(p *corev1.Pod) bool {
			c := status(p, "c") // the deadline terminates it again
			return strings.HasSuffix(c.Image, "testbox:user") && (c.State.Running != nil || c.State.Terminated != nil)
		},
	},
	{
		"evicted", "volumes: [{name: data, emptyDir: {sizeLimit: 5Mi}}]\ncontainers:\n" + sh("c",
			"volumeMounts: [{name: data, mountPath: /data}], resources: {limits: {memory: 64Mi}}, "+
				"env: [{name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]",
			"[ $LIMIT -gt 67108864 ] || dd if=/dev/zero of=/data/x bs=1M count=20; exec sleep 1000000"),
		"memory: 64Mi", "memory: 65Mi", corev1.PodFailed, "Evicted", podReady,
	},
}

func podReady(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && status(p, "c").Ready }

// TestEditRestartsFinishedPod edits failed pods. The edits are of fields that can change without a new
// UID.
func TestEditRestartsFinishedPod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		for _, row := range finishedPods {
			s.Pod(row.name, row.spec)
		}
		for _, row := range finishedPods {
			if p := s.Phase(row.name, row.phase); p.Status.Reason != row.reason {
				t.Errorf("%s: unexpected reason %q: %s", row.name, p.Status.Reason, brief(p))
			}
			s.Pod(row.name, strings.Replace(row.spec, row.oldText, row.newText, 1))
		}
		for _, row := range finishedPods {
			p := s.Wait(row.name, "in the edited state", row.edited)
			if p.Status.Reason != "" && row.name != "late" || p.DeletionTimestamp != nil ||
				status(p, "c").RestartCount != 0 {
				t.Errorf("%s: %s %s", row.name, p.Status.Reason, brief(p))
			}
		}
	})
}

// TestEditWhileAgentIsStoppedRestartsFinishedPod edits failed pods while the agent is stopped.
func TestEditWhileAgentIsStoppedRestartsFinishedPod(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("other", "containers:\n"+box("c", "", "sleep"))
		other := s.Running("other")
		for _, row := range finishedPods {
			s.Pod(row.name, row.spec)
		}
		for _, row := range finishedPods {
			s.Phase(row.name, row.phase)
		}
		if err := s.Agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, row := range finishedPods {
			s.Pod(row.name, strings.Replace(row.spec, row.oldText, row.newText, 1))
		}
		if err := s.Agent.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, row := range finishedPods {
			s.Wait(row.name, "in the edited state", row.edited)
		}
		if p := s.Running("other"); p.UID != other.UID || status(p, "c").RestartCount != 0 {
			t.Errorf("a pod without an edit was replaced or restarted: %s", brief(p))
		}
	})
}
