package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRejectedFileIsValidatedAgainAfterRestart adds the node label that a rejected pod selects. The
// manifest and the UID do not change.
func TestRejectedFileIsValidatedAgainAfterRestart(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("selector", "nodeSelector: {zone: b}\ncontainers:\n"+box("c", "", "sleep"))
		before := s.Phase("selector", corev1.PodFailed)
		if before.Status.Reason != "NodeAffinity" {
			t.Errorf("rejected with reason %q, want NodeAffinity", before.Status.Reason)
		}
		s.Agent.Args = append(s.Agent.Args, "--node-labels", "zone=b")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p := s.Running("selector"); p.UID != before.UID || p.Status.Reason != "" {
			t.Errorf("pod was replaced or is still failed: %s", brief(p))
		}
	})
}

// TestStartupWithoutRuntimeReportsReason restarts the agent while containerd is down, with a pod from
// before the restart.
func TestStartupWithoutRuntimeReportsReason(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("old", "containers:\n"+box("c", "", "sleep"))
		before := s.Running("old")
		if err := s.Host.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		out, err := s.Try("check")
		if err == nil || !strings.HasPrefix(out, "berth is not running: the checks were run locally\n") {
			t.Errorf("check without an agent: %v\n%s", err, out)
		}
		s.Pod("new", "containers:\n"+box("c", "", "sleep"))
		s.Put("bad.yaml", "kind: Pod\nspec: [")
		if err := s.Agent.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Agent.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Wait("new", "waiting for the runtime", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodPending && p.Status.Reason == "RuntimeNotReady"
		})
		s.waitExplanation("new", "RuntimeNotReady", "waiting for the container runtime: ")
		s.waitInvalidManifest("bad.yaml")
		s.contains("ps", s.Berth("ps", "-A"), "old", "new", "RuntimeNotReady", "Warning: container runtime: ")
		if err := s.Host.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Running("new")
		p := s.Running("old")
		if p.UID != before.UID || status(p, "c").ContainerID != status(before, "c").ContainerID ||
			status(p, "c").RestartCount != 0 {
			t.Errorf("pod was replaced or restarted: %s", brief(p))
		}
	})
}
