package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// startLogind starts a fake logind. The cleanup of the test stops it.
func startLogind(t *testing.T) *hosts.Logind {
	t.Helper()
	logind, err := hosts.StartLogind(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := logind.Close(); err != nil {
			t.Error(err)
		}
	})
	return logind
}

// nextInhibitor waits until the agent takes its next inhibitor lock. The result waits until the agent
// releases the lock.
func nextInhibitor(t *testing.T, l *hosts.Logind) (released func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	wait, err := l.NextInhibitor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		if err := wait(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestScenario26_GracefulShutdownTerminatesPodsByGroup checks that the agent delays the shutdown until
// the pods are terminated, by ascending priority and each group with its grace period. No new pod
// starts, and an agent restart during the shutdown does not restart pods.
func TestScenario26_GracefulShutdownTerminatesPodsByGroup(t *testing.T) {
	groups := []map[string]any{{"priority": 0, "shutdownGracePeriodSeconds": 60},
		{"priority": 1000, "shutdownGracePeriodSeconds": 20}}
	options := nodeOptions{CNI: true, Config: map[string]any{"shutdownGracePeriodByPodPriority": groups}}
	forEachNewNode(t, options, func(t *testing.T, s *Namespace) {
		l := startLogind(t)
		s.Agent.SetEnv("GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0", l.Env)
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		released := nextInhibitor(t, l)
		s.Pod("low", "restartPolicy: Always\ncontainers:\n"+box("c", "", "on-term 2s 7", "print ready", "sleep"))
		s.Pod("ignores-term", "terminationGracePeriodSeconds: 3\ncontainers:\n"+
			box("c", "", "ignore-term", "print ready", "sleep"))
		s.Pod("high", "priority: 1000\ncontainers:\n"+box("c", "", "print ready", "sleep"))
		for _, name := range []string{"low", "ignores-term", "high"} {
			s.Running(name)
			s.WaitLog(name, "c", "ready") // before, SIGTERM ends the process with exit code 2
		}
		if err := l.StartShutdown(); err != nil {
			t.Fatal(err)
		}
		terminated := func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Terminated" &&
				p.Status.Message == "Pod was terminated in response to imminent node shutdown."
		}
		terminations := map[string]*corev1.ContainerStateTerminated{}
		for name, code := range map[string]int32{"low": 7, "ignores-term": 137, "high": 143} {
			p := s.Wait(name, "terminated with the node", terminated)
			state := status(p, "c").State.Terminated
			if terminations[name] = state; state == nil || state.ExitCode != code || status(p, "c").RestartCount != 0 {
				t.Fatalf("%s: %+v", name, status(p, "c"))
			}
			if !strings.Contains(brief(p)+fmt.Sprint(p.Status.Conditions), "DisruptionTarget") {
				t.Errorf("%s: %+v", name, p.Status.Conditions)
			}
		}
		for _, name := range []string{"low", "ignores-term"} {
			if terminations["high"].FinishedAt.Time.Before(terminations[name].FinishedAt.Time) {
				t.Errorf("high terminated at %v, before %s at %v",
					terminations["high"].FinishedAt, name, terminations[name].FinishedAt)
			}
		}
		released()
		s.Pod("late", "containers:\n"+box("c", "", "sleep"))
		s.waitWhy("late", "NodeShutdown", "Pod was rejected as the node is shutting down.")
		s.KillAndRestartAgent()
		nextInhibitor(t, l)()
		if p := s.Wait("late", "listed with a phase", func(p *corev1.Pod) bool {
			return p.Status.Phase != ""
		}); status(p, "c").ContainerID != "" {
			t.Errorf("late was started: %+v", status(p, "c"))
		}
		for _, name := range []string{"low", "ignores-term", "high"} {
			if p := s.Wait(name, "terminated with the node", terminated); status(p, "c").RestartCount != 0 {
				t.Errorf("%s was restarted: %+v", name, status(p, "c"))
			}
		}
	})
}
