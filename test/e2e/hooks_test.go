package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

func TestPostStartIsPartOfStarting(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		s.Pod("gate", `
			terminationGracePeriodSeconds: 1
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("car", "restartPolicy: Always, "+mount+", lifecycle: {postStart: {exec: {command: [sh, -c, 'echo car-hook >> /v/log; sleep 0.5; echo car-hooked >> /v/log']}}}", "sleep 1000")+`
			containers:
			`+sh("a", mount+", lifecycle: {postStart: {exec: {command: [sh, -c, 'echo a-hook >> /v/log; while [ ! -e /v/go ]; do sleep 0.05; done; echo a-hooked >> /v/log']}}}", "echo a >> /v/log; sleep 1000")+`
			`+sh("b", mount, "echo b >> /v/log; sleep 1000"))
		await(t, "gate to be in its hook", func() bool { return strings.Contains(readFile(t, dir+"/log"), "a-hook") })
		p := s.Get("gate")
		if a := status(p, "a"); a.State.Waiting == nil || a.Ready || p.Status.Phase != corev1.PodPending || status(p, "b").State.Waiting == nil {
			t.Errorf("while a hook runs: %s", brief(p))
		}
		s.Put("other", podYAML("other", "", "terminationGracePeriodSeconds: 1\ncontainers:\n"+box("c", "", "sleep")))
		s.Running("other") // nobody else waits for it
		write(t, dir+"/go")
		s.Running("gate")
		got := strings.Fields(readFile(t, dir+"/log"))
		if strings.Join(got, " ") != "car-hook car-hooked a a-hook a-hooked b" && strings.Join(got, " ") != "car-hook car-hooked a-hook a a-hooked b" {
			t.Errorf("they ran so: %v", got)
		}
	})
}

func TestAFailedPostStartKillsTheContainer(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		bad := "lifecycle: {postStart: {exec: {command: [sh, -c, 'echo no luck; exit 3']}}}"
		s.Pod("never", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\ncontainers:\n"+sh("c", bad, "sleep 1000"))
		p := s.Phase("never", corev1.PodFailed)
		if x := status(p, "c").State.Terminated; x == nil || x.ExitCode != 137 {
			t.Errorf("never: %s", brief(p))
		}
		s.Event("never", "FailedPostStartHook: PostStartHook failed")
		s.Event("never", "Killing: FailedPostStartHook")
		for _, e := range s.Events("never") {
			if strings.Contains(e, "no luck") {
				t.Errorf("an event tells what the hook printed: %s", e)
			}
		}

		// The second time it works.
		s.Pod("again", "terminationGracePeriodSeconds: 1\nvolumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], lifecycle: {postStart: {exec: {command: [sh, -c, '[ -e /v/x ] || { touch /v/x; exit 1; }']}}}", "sleep 1000"))
		p = s.Running("again")
		if c := status(p, "c"); c.RestartCount != 1 || c.LastTerminationState.Terminated == nil {
			t.Errorf("again: %s", brief(p))
		}

		// A tcpSocket can be written down, and always fails.
		s.Pod("tcp", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\ncontainers:\n"+box("c", "lifecycle: {postStart: {tcpSocket: {port: 80}}}", "sleep"))
		s.Phase("tcp", corev1.PodFailed)
		s.Event("tcp", "FailedPostStartHook: ")
	})
}

func TestPreStopRunsBeforeTheStopSignal(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		life := func(name string) string {
			return fmt.Sprintf("trap 'echo term-%s >> /v/log; exit 0' TERM; while :; do sleep 0.05; done", name)
		}
		hook := func(name, more string) string {
			return mount + more + fmt.Sprintf(", lifecycle: {preStop: {exec: {command: [sh, -c, 'echo pre-%s >> /v/log; sleep 0.3; echo done-%s >> /v/log']}}}", name, name)
		}
		s.Pod("order", `
			terminationGracePeriodSeconds: 30
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("car", hook("car", ", restartPolicy: Always"), life("car"))+`
			containers:
			`+sh("main", hook("main", ""), life("main")))
		s.Running("order")
		s.Remove("order")
		s.Gone("order")
		got := readFile(t, dir+"/log")
		for _, pair := range [][2]string{{"pre-main", "done-main"}, {"done-main", "term-main"}, {"done-car", "term-car"}, {"term-main", "term-car"}} {
			if x, y := strings.Index(got, pair[0]), strings.Index(got, pair[1]); x < 0 || y < 0 || x > y {
				t.Errorf("%s is not before %s in %q", pair[0], pair[1], got)
			}
		}

		// One that fails is told and changes nothing else; one that hangs costs the
		// grace and 2 s.
		s.Pod("fails", "terminationGracePeriodSeconds: 30\nvolumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
			sh("c", mount+", lifecycle: {preStop: {exec: {command: [sh, -c, 'exit 1']}}}", life("fails")))
		s.Pod("hangs", "terminationGracePeriodSeconds: 3\nvolumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
			sh("c", mount+", lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hang >> /v/log; sleep 1000']}}}", life("hangs")))
		s.Running("fails")
		s.Running("hangs")
		s.Remove("fails")
		s.Remove("hangs")
		await(t, "hangs to be in its hook", func() bool { return strings.Contains(readFile(t, dir+"/log"), "hang\n") })
		began := time.Now()
		s.contains("why", s.Berth("why", "-n", s.ns, "hangs"), "preStop")
		s.Gone("fails")
		s.Gone("hangs")
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("a hook that hangs took %s", took)
		}
		s.contains("log", readFile(t, dir+"/log"), "term-fails", "term-hangs")
	})
}

func TestHTTPHooksReachThePod(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		dir := t.TempDir()
		s.Pod("web", `
			terminationGracePeriodSeconds: 10
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			- name: srv
			  image: busybox:1.36
			  restartPolicy: Always
			  command: [sh, -c, "exec httpd -f -vv -p 8080 -h / 2>>/v/log"]
			  volumeMounts: [{name: v, mountPath: /v}]
			  lifecycle: {postStart: {sleep: {seconds: 1}}}
			containers:
			- name: c
			  image: berth/testbox:1
			  args: [sleep]
			  ports: [{name: web, containerPort: 8080}]
			  lifecycle:
			    postStart: {httpGet: {port: web, path: /started}}
			    preStop: {httpGet: {port: 8080, path: /stopping}}
		`)
		p := s.Running("web")
		if c := status(p, "c"); c.RestartCount != 0 { // any answer is success
			t.Errorf("%s", brief(p))
		}
		s.contains("requests", readFile(t, dir+"/log"), "url:/started", "response:404")
		s.Remove("web")
		s.Gone("web")
		s.contains("requests", readFile(t, dir+"/log"), "url:/stopping")
	})
}

func TestStopSignals(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		dir := t.TempDir()
		s.Pod("signal", "os: {name: linux}\nterminationGracePeriodSeconds: 20\nvolumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], lifecycle: {stopSignal: SIGUSR1}",
				"trap 'echo usr1 >> /v/log; exit 0' USR1; trap 'echo term >> /v/log' TERM; while :; do sleep 0.05; done"))
		s.Running("signal")
		if s.has("stop signals") {
			s.Wait("signal", "telling its signal", func(p *corev1.Pod) bool {
				sig := status(p, "c").StopSignal
				return sig != nil && *sig == corev1.SIGUSR1
			})
		}
		s.Remove("signal")
		s.Gone("signal")
		if got := exists(dir+"/log") && readFile(t, dir+"/log") == "usr1\n"; got != s.has("stop signals") {
			t.Errorf("the container got SIGUSR1: %v", got)
		}
	})
}

// await waits for what no event of a pod tells.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitBound)
	defer cancel()
	if err := hosts.WaitFor(ctx, what, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
