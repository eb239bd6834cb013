package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestRestartRules(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		rule := "restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]"
		s.Pod("rule", "restartPolicy: Never\nvolumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], "+rule, "[ -e /v/x ] && exit 7; touch /v/x; exit 42"))
		p := s.Phase("rule", corev1.PodFailed)
		if c := status(p, "c"); c.RestartCount != 1 || c.State.Terminated.ExitCode != 7 ||
			c.LastTerminationState.Terminated.ExitCode != 42 {
			t.Errorf("rule: %s", brief(p))
		}
		// NotIn matches what is not listed.
		notIn := "restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: NotIn, " +
			"values: [0, 7]}}]"
		s.Pod("not", "restartPolicy: Never\nvolumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], "+notIn, "[ -e /v/x ] && exit 7; touch /v/x; exit 42")+
			box("well", notIn, "exit"))
		p = s.Phase("not", corev1.PodFailed)
		if c := status(p, "c"); c.RestartCount != 1 || c.State.Terminated.ExitCode != 7 ||
			c.LastTerminationState.Terminated.ExitCode != 42 || status(p, "well").RestartCount != 0 {
			t.Errorf("not: %s", brief(p))
		}
		s.Pod("own", "restartPolicy: Always\nterminationGracePeriodSeconds: 1\ncontainers:\n"+
			box("once", "restartPolicy: Never", "exit 3")+box("stays", "", "sleep"))
		p = s.Wait("own", "running with once terminated", func(p *corev1.Pod) bool {
			return status(p, "once").State.Terminated != nil
		})
		if c := status(p, "once"); c.RestartCount != 0 || p.Status.Phase == corev1.PodFailed {
			t.Errorf("own: %s", brief(p))
		}
	})
}

func TestRestartAllContainersInPlace(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		s.Pod("all", `
			restartPolicy: Never
			terminationGracePeriodSeconds: 5
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("setup", mount, "echo setup >> /v/log")+`
			`+sh("watch", mount+", restartPolicy: Always, "+
			"restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]",
			"echo watch >> /v/log; [ -e /v/second ] && exec sleep 1000; while [ ! -e /v/go ]; do sleep 0.05; done; "+
				"touch /v/second; exit 88")+`
			containers:
			`+sh("main", mount+", lifecycle: {preStop: {exec: {command: [sh, -c, 'echo preStop >> /v/log']}}}",
			"echo main >> /v/log; exec sleep 1000"))
		before := s.Running("all")
		waitFor(t, "the first line of main", func() bool { return strings.Contains(readFile(t, dir+"/log"), "main") })
		touch(t, dir+"/go")
		p := s.Wait("all", "running again", func(p *corev1.Pod) bool {
			return status(p, "main").RestartCount == 1 && status(p, "main").State.Running != nil
		})
		if p.Status.PodIP != before.Status.PodIP || status(p, "setup").RestartCount != 1 ||
			status(p, "watch").RestartCount != 1 {
			t.Errorf("after the restart: %s, IP %s, want %s", brief(p), p.Status.PodIP, before.Status.PodIP)
		}
		if condition(p, corev1.AllContainersRestarting) != corev1.ConditionFalse {
			t.Errorf("conditions: %+v", p.Status.Conditions)
		}
		waitFor(t, "the second line of main", func() bool {
			return strings.Count(readFile(t, dir+"/log"), "main") == 2
		})
		if got := strings.Fields(readFile(t, dir+"/log")); strings.Join(got, " ") != "setup watch main "+
			"setup watch main" {
			t.Errorf("unexpected order: %v", got)
		}
	})
}
