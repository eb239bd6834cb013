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

func TestPostStartDelaysRunning(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		s.Pod("hooks", `
			terminationGracePeriodSeconds: 1
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("car", "restartPolicy: Always, "+mount+", lifecycle: {postStart: {exec: {command: "+
			"[sh, -c, 'echo car-hook >> /v/log; sleep 0.5; echo car-hooked >> /v/log']}}}", "sleep 1000")+`
			containers:
			`+sh("a", mount+", lifecycle: {postStart: {exec: {command: [sh, -c, 'echo a-hook >> /v/log; "+
			"while [ ! -e /v/go ]; do sleep 0.05; done; echo a-hooked >> /v/log']}}}", "echo a >> /v/log; sleep 1000")+`
			`+sh("b", mount, "echo b >> /v/log; sleep 1000"))
		waitFor(t, "the postStart hook to run", func() bool {
			return strings.Contains(readFile(t, dir+"/log"), "a-hook")
		})
		p := s.Get("hooks")
		if a := status(p, "a"); a.State.Waiting == nil || a.Ready || p.Status.Phase != corev1.PodPending ||
			status(p, "b").State.Waiting == nil {
			t.Errorf("while a hook runs: %s", brief(p))
		}
		s.Put("other", podYAML("other", "", "terminationGracePeriodSeconds: 1\ncontainers:\n"+box("c", "", "sleep")))
		s.Running("other") // the hook does not block other pods
		touch(t, dir+"/go")
		s.Running("hooks")
		waitFor(t, "container b to write its line", func() bool {
			return strings.HasSuffix(readFile(t, dir+"/log"), "\nb\n")
		})
		got := strings.Fields(readFile(t, dir+"/log"))
		if strings.Join(got, " ") != "car-hook car-hooked a a-hook a-hooked b" &&
			strings.Join(got, " ") != "car-hook car-hooked a-hook a a-hooked b" {
			t.Errorf("unexpected order: %v", got)
		}
	})
}

func TestFailedPostStartKillsContainer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		hook := "lifecycle: {postStart: {exec: {command: [sh, -c, 'echo hook output; exit 3']}}}"
		s.Pod("never", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\ncontainers:\n"+
			sh("c", hook, "sleep 1000"))
		p := s.Phase("never", corev1.PodFailed)
		if x := status(p, "c").State.Terminated; x == nil || x.ExitCode != 137 {
			t.Errorf("never: %s", brief(p))
		}
		s.Event("never", "FailedPostStartHook: PostStartHook failed")
		s.Event("never", "Killing: FailedPostStartHook")
		for _, e := range s.Events("never") {
			if strings.Contains(e, "hook output") {
				t.Errorf("an event contains the output of the hook: %s", e)
			}
		}

		// The hook succeeds after the restart.
		s.Pod("again", "terminationGracePeriodSeconds: 1\nvolumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], lifecycle: {postStart: {exec: {command: [sh, -c, '[ "+
				"-e /v/x ] || { touch /v/x; exit 1; }']}}}", "sleep 1000"))
		p = s.Running("again")
		if c := status(p, "c"); c.RestartCount != 1 || c.LastTerminationState.Terminated == nil {
			t.Errorf("again: %s", brief(p))
		}

		// A tcpSocket hook is valid and always fails.
		s.Pod("tcp", "restartPolicy: Never\nterminationGracePeriodSeconds: 1\ncontainers:\n"+
			box("c", "lifecycle: {postStart: {tcpSocket: {port: 80}}}", "sleep"))
		s.Phase("tcp", corev1.PodFailed)
		s.Event("tcp", "FailedPostStartHook: ")
	})
}

func TestPreStopRunsBeforeTheStopSignal(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		script := func(name string) string {
			return fmt.Sprintf("trap 'echo term-%[1]s >> /v/log; exit 0' TERM; touch /v/up-%[1]s; while :; do "+
				"sleep 0.05; done", name)
		}
		trapped := func(names ...string) {
			t.Helper()
			for _, name := range names {
				waitFor(t, name+" to trap SIGTERM", func() bool { return exists(dir + "/up-" + name) })
			}
		}
		hook := func(name, more string) string {
			return mount + more +
				fmt.Sprintf(", lifecycle: {preStop: {exec: {command: [sh, -c, 'echo pre-%s >> /v/log; sleep 0.3; "+
					"echo done-%s >> /v/log']}}}", name, name)
		}
		s.Pod("order", `
			terminationGracePeriodSeconds: 30
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("car", hook("car", ", restartPolicy: Always"), script("car"))+`
			containers:
			`+sh("main", hook("main", ""), script("main")))
		s.Running("order")
		trapped("car", "main")
		s.Remove("order")
		s.WaitDeleted("order")
		got := readFile(t, dir+"/log")
		for _, pair := range [][2]string{{"pre-main", "done-main"}, {"done-main", "term-main"},
			{"done-car", "term-car"}, {"term-main", "term-car"}} {
			if x, y := strings.Index(got, pair[0]), strings.Index(got, pair[1]); x < 0 || y < 0 || x > y {
				t.Errorf("%s is not before %s in %q", pair[0], pair[1], got)
			}
		}

		// A hook that fails is reported and has no other effect. A hook that hangs uses the grace period
		// and 2 s more.
		s.Pod("fails", "terminationGracePeriodSeconds: 30\nvolumes: [{name: v, hostPath: {path: "+dir+
			"}}]\ncontainers:\n"+
			sh("c", mount+", lifecycle: {preStop: {exec: {command: [sh, -c, 'exit 1']}}}", script("fails")))
		s.Pod("hangs", "terminationGracePeriodSeconds: 20\nvolumes: [{name: v, hostPath: {path: "+dir+
			"}}]\ncontainers:\n"+
			sh("c", mount+", lifecycle: {preStop: {exec: {command: [sh, -c, 'echo hang >> /v/log; sleep 1000']}}}",
				script("hangs")))
		s.Running("fails")
		s.Running("hangs")
		trapped("fails", "hangs")
		// The event of a failed hook is visible when the pod keeps running.
		s.Pod("sick", "terminationGracePeriodSeconds: 30\nvolumes: [{name: v, hostPath: {path: "+dir+
			"}}]\ncontainers:\n"+
			sh("c", mount+", livenessProbe: {exec: {command: ['false']}, "+everySecond+
				"}, lifecycle: {preStop: {exec: {command: [sh, -c, 'echo secret output; exit 1']}}}", script("sick")))
		s.Event("sick", "FailedPreStopHook: PreStopHook failed")
		s.Event("sick", "Killing: Container c failed liveness probe, will be restarted")
		if all := strings.Join(s.Events("sick"), "\n"); strings.Contains(all, "secret output") {
			t.Errorf("an event contains the output of the hook: %s", all)
		}
		s.Remove("fails")
		s.Remove("hangs")
		waitFor(t, "the preStop hook of hangs to run", func() bool {
			return strings.Contains(readFile(t, dir+"/log"), "hang\n")
		})
		s.waitWhy("hangs", "preStop")
		s.WaitDeleted("fails")
		s.WaitDeleted("hangs") // the command itself runs longer than the timeout
		s.contains("log", readFile(t, dir+"/log"), "term-fails", "term-hangs")
	})
}

// TestPreStopSleeps checks that SIGTERM is sent after the sleep, and at once for a sleep of 0 s.
func TestPreStopSleeps(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		container := func(name string, seconds int) string {
			return sh(name, fmt.Sprintf("volumeMounts: [{name: v, mountPath: /v}], lifecycle: {preStop: {sleep: "+
				"{seconds: %d}}}", seconds),
				"trap 'touch /v/"+name+"; exit 0' TERM; touch /v/"+name+"-up; while :; do sleep 0.05; done")
		}
		s.Pod("sleeps", "terminationGracePeriodSeconds: 60\nvolumes: [{name: v, hostPath: {path: "+dir+
			"}}]\ncontainers:\n"+
			container("none", 0)+container("three", 3))
		s.Running("sleeps")
		waitFor(t, "containers to trap SIGTERM", func() bool {
			return exists(dir+"/none-up") && exists(dir+"/three-up")
		})
		deletedAt := time.Now()
		s.Remove("sleeps")
		s.Wait("sleeps", "running with container none terminated", func(p *corev1.Pod) bool {
			return status(p, "none").State.Terminated != nil
		})
		s.WaitDeleted("sleeps")
		if !exists(dir + "/none") {
			t.Error("the container with a sleep of 0 s got no SIGTERM")
		}
		f, err := os.Stat(dir + "/three")
		if err != nil {
			t.Fatal(err)
		}
		// File times have the granularity of a kernel tick.
		if delay := f.ModTime().Sub(deletedAt); delay < 3*time.Second-10*time.Millisecond {
			t.Errorf("SIGTERM was sent %s after the deletion, want at least 3s", delay)
		}
	})
}

func TestHTTPHooksReachPod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
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
			  startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, failureThreshold: 600}
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
		if c := status(p, "c"); c.RestartCount != 0 { // any HTTP status is a success
			t.Errorf("%s", brief(p))
		}
		waitFor(t, "the request of the postStart hook in the log", func() bool {
			log := readFile(t, dir+"/log")
			return strings.Contains(log, "url:/started") && strings.Contains(log, "response:404")
		})

		// TLS certificates are not verified. A server without TLS is retried with HTTP.
		before := s.metric("kubelet_lifecycle_handler_http_fallbacks_total")
		s.Pod("tls", "terminationGracePeriodSeconds: 1\ninitContainers:\n"+
			box("srv", "restartPolicy: Always, startupProbe: {tcpSocket: {port: 8443}, periodSeconds: 1, "+
				"failureThreshold: 600}", "serve 8080 8443")+"containers:\n"+
			box("tls", "lifecycle: {postStart: {httpGet: {scheme: HTTPS, port: 8443, path: /healthz}}}", "sleep")+
			box("plain", "lifecycle: {postStart: {httpGet: {scheme: HTTPS, port: 8080, path: /healthz}}}", "sleep"))
		p = s.Running("tls")
		s.Event("tls", "LifecycleHTTPFallback: request to HTTPS lifecycle hook "+p.Status.PodIP+
			":8080 got HTTP response, retry with HTTP succeeded")
		s.waitMetric("kubelet_lifecycle_handler_http_fallbacks_total", equals(max(0, before)+1)) // by container plain
		s.Remove("web")
		s.WaitDeleted("web")
		s.contains("requests", readFile(t, dir+"/log"), "url:/stopping")
	})
}

func TestStopSignals(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		s.Pod("signal", "os: {name: linux}\nterminationGracePeriodSeconds: 20\nvolumes: [{name: v, hostPath: {path: "+
			dir+"}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}], lifecycle: {stopSignal: SIGUSR1}",
				"trap 'echo usr1 >> /v/log; exit 0' USR1; trap 'echo term >> /v/log' TERM; touch /v/up; while :; do "+
					"sleep 0.05; done"))
		s.Running("signal")
		waitFor(t, "the container to trap its signals", func() bool { return exists(dir + "/up") })
		if s.supports("stop signals") {
			s.Wait("signal", "reporting its stop signal", func(p *corev1.Pod) bool {
				sig := status(p, "c").StopSignal
				return sig != nil && *sig == corev1.SIGUSR1
			})
		}
		s.Remove("signal")
		s.WaitDeleted("signal")
		if got := exists(dir+"/log") && readFile(t, dir+"/log") == "usr1\n"; got != s.supports("stop signals") {
			t.Errorf("the container got only SIGUSR1: %v", got)
		}
	})
}

// waitFor waits for a condition that no pod watch event shows.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := hosts.WaitFor(ctx, what, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatal(err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
