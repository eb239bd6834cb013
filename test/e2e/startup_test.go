package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestRejectedFileIsValidatedAgainAfterRestart has the node get the label that the
// pod asks for; the file stays as it is, and with it the pod's UID.
func TestRejectedFileIsValidatedAgainAfterRestart(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		s.Pod("martian", "nodeSelector: {zone: mars}\ncontainers:\n"+box("c", "", "sleep"))
		before := s.Phase("martian", corev1.PodFailed)
		if before.Status.Reason != "NodeAffinity" {
			t.Errorf("refused for %q", before.Status.Reason)
		}
		s.Agent.Args = append(s.Agent.Args, "--node-labels", "zone=mars")
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if p := s.Running("martian"); p.UID != before.UID || p.Status.Reason != "" {
			t.Errorf("another pod, or one that still fails: %s", brief(p))
		}
	})
}

// TestStartupWithoutRuntimeReportsReason begins the agent's
// second life with containerd down, beside a pod of its first.
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
		if p.UID != before.UID || status(p, "c").ContainerID != status(before, "c").ContainerID || status(p, "c").RestartCount != 0 {
			t.Errorf("the pod was touched: %s", brief(p))
		}
	})
}
