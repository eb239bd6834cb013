package e2e

import (
	"bufio"
	"strings"
	"testing"
)

func TestEventsFollow(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("early", "containers:\n"+box("c", "", "sleep"))
		s.Running("early")
		cmd := s.Agent.Command(t.Context(), "events", "-w", "-n", s.ns)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		lines := bufio.NewScanner(out)
		until := func(parts ...string) {
			t.Helper()
			for lines.Scan() {
				all := true
				for _, p := range parts {
					all = all && strings.Contains(lines.Text(), p)
				}
				if all {
					return
				}
			}
			t.Fatalf("events -w exited before it printed a line with %v", parts)
		}
		until("Normal", "Started", "pod/early")
		s.Pod("late", "containers:\n"+box("c", "imagePullPolicy: Never", "sleep"))
		until("Normal", "Started", "pod/late", "Started container c")
		s.Remove("late")
		until("Normal", "Killing", "pod/late")
	})
}

func TestCompletion(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		for shell, part := range map[string]string{"bash": "__start_berth", "zsh": "#compdef berth",
			"fish": "complete -c berth"} {
			s.contains("completion "+shell, s.Berth("completion", shell), part)
		}
		s.Pod("named", "containers:\n"+box("c", "", "sleep"))
		s.Running("named")
		for _, command := range []string{"attach", "top", "port-forward", "logs", "debug", "restart"} {
			s.contains("completion of "+command, s.Berth("__complete", command, "-n", s.ns, "na"), "named\n")
		}
		s.contains("completion of cp", s.Berth("__complete", "cp", "-n", s.ns, "na"), "named:\n")
	})
}
