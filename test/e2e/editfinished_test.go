package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// over are pods that come to an end of some kind, with an edit of an image or an
// amount after which they run.
var over = []struct {
	name, spec, was, now string
	phase                corev1.PodPhase
	reason               string
	runs                 func(*corev1.Pod) bool
}{
	{
		"rejected", "containers:\n" + box("c", "resources: {requests: {cpu: 1000}}", "sleep"),
		"cpu: 1000", "cpu: 10m", corev1.PodFailed, "OutOfcpu", ready,
	},
	{
		"finished", "restartPolicy: Never\ncontainers:\n" + box("c", "", "exit 3"),
		"testbox:1", "testbox:user", corev1.PodFailed, "", func(p *corev1.Pod) bool {
			c := status(p, "c")
			return p.Status.Phase == corev1.PodFailed && c.State.Terminated != nil && c.State.Terminated.ExitCode == 3 && strings.HasSuffix(c.Image, "testbox:user")
		},
	},
	{
		"late", "activeDeadlineSeconds: 8\nterminationGracePeriodSeconds: 1\ncontainers:\n" + box("c", "", "sleep"),
		"testbox:1", "testbox:user", corev1.PodFailed, "DeadlineExceeded", func(p *corev1.Pod) bool {
			c := status(p, "c") // which its deadline ends again
			return strings.HasSuffix(c.Image, "testbox:user") && (c.State.Running != nil || c.State.Terminated != nil)
		},
	},
	{
		"evicted", "volumes: [{name: data, emptyDir: {sizeLimit: 5Mi}}]\ncontainers:\n" + sh("c",
			"volumeMounts: [{name: data, mountPath: /data}], resources: {limits: {memory: 64Mi}}, "+
				"env: [{name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]",
			"[ $LIMIT -gt 67108864 ] || dd if=/dev/zero of=/data/x bs=1M count=20; exec sleep 1000000"),
		"memory: 64Mi", "memory: 65Mi", corev1.PodFailed, "Evicted", ready,
	},
}

func ready(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && status(p, "c").Ready }

// TestEditRestartsFinishedPod edits images and amounts, which keep the UID of
// a pod that runs, of pods that do not run any more.
func TestEditRestartsFinishedPod(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		for _, row := range over {
			s.Pod(row.name, row.spec)
		}
		for _, row := range over {
			if p := s.Phase(row.name, row.phase); p.Status.Reason != row.reason {
				t.Errorf("%s is over for %q: %s", row.name, p.Status.Reason, brief(p))
			}
			s.Pod(row.name, strings.Replace(row.spec, row.was, row.now, 1))
		}
		for _, row := range over {
			p := s.Wait(row.name, "as its manifest is now", row.runs)
			if p.Status.Reason != "" && row.name != "late" || p.DeletionTimestamp != nil || status(p, "c").RestartCount != 0 {
				t.Errorf("%s: %s %s", row.name, p.Status.Reason, brief(p))
			}
		}
	})
}

// TestEditWhileAgentIsStoppedRestartsFinishedPod has the next life find it.
func TestEditWhileAgentIsStoppedRestartsFinishedPod(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		s.Pod("other", "containers:\n"+box("c", "", "sleep"))
		other := s.Running("other")
		for _, row := range over {
			s.Pod(row.name, row.spec)
		}
		for _, row := range over {
			s.Phase(row.name, row.phase)
		}
		if err := s.Agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, row := range over {
			s.Pod(row.name, strings.Replace(row.spec, row.was, row.now, 1))
		}
		if err := s.Agent.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, row := range over {
			s.Wait(row.name, "as its manifest is now", row.runs)
		}
		if p := s.Running("other"); p.UID != other.UID || status(p, "c").RestartCount != 0 {
			t.Errorf("a pod that was not edited: %s", brief(p))
		}
	})
}
