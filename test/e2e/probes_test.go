package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/test/hosts"
)

// setHealthz sets the status code of a testbox web server at /healthz.
func (s *Namespace) setHealthz(p *corev1.Pod, code int) {
	s.t.Helper()
	err := hosts.WaitFor(s.t.Context(), "the web server to respond", func() (bool, error) {
		r, err := http.Post(fmt.Sprintf("http://%s:8080/healthz?code=%d", p.Status.PodIP, code), "", nil)
		if err != nil {
			return false, nil //nolint:nilerr // retried
		}
		return r.StatusCode == http.StatusOK, r.Body.Close()
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func isReady(want corev1.ConditionStatus) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return condition(p, corev1.PodReady) == want && condition(p, corev1.ContainersReady) == want
	}
}

// everySecond are the fields of a probe that reports each change within a second. On a busy machine, an answer may take
// longer than the default timeout.
const everySecond = "periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 20"

func TestHTTPReadinessProbe(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("web", "containers:\n"+
			box("c", "ports: [{name: web, containerPort: 8080}], readinessProbe: {httpGet: {path: /healthz, "+
				"port: web}, "+everySecond+"}", "serve"))
		p := s.Running("web")
		s.setHealthz(p, 503)
		p = s.Wait("web", "not ready", isReady(corev1.ConditionFalse))
		if c := status(p, "c"); c.Ready || c.Started == nil || !*c.Started || p.Status.Phase != corev1.PodRunning {
			t.Errorf("container: %+v", c)
		}
		s.Event("web", "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503")
		s.waitWhy("web", "readiness probe failing (httpGet http://:web/healthz): HTTP probe failed with "+
			"statuscode: 503")
		s.contains("probes", s.Berth("probes", "-n", s.ns, "web"), "readiness", "failing", "failed 1/1",
			"HTTP probe failed with statuscode: 503")
		s.setHealthz(p, 200)
		p = s.Wait("web", "ready again", isReady(corev1.ConditionTrue))
		if n := status(p, "c").RestartCount; n != 0 {
			t.Errorf("got %d restarts, want 0", n)
		}
		probes, err := s.Client.Probes(t.Context(), s.ns, "web")
		if err != nil || len(probes.Probes) != 1 || probes.Probes[0].State != nodeapi.ProbePassing ||
			len(probes.Probes[0].Recent) == 0 || probes.Probes[0].Recent[0].Seconds <= 0 {
			t.Errorf("%+v %v", probes, err)
		}
	})
}

func TestFailedLivenessProbeRestartsWithProbeGracePeriod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("web", "terminationGracePeriodSeconds: 15\ncontainers:\n"+
			box("c", "livenessProbe: {httpGet: {path: /healthz, port: 8080}, terminationGracePeriodSeconds: 1, "+
				everySecond+"}", "ignore-term", "serve")+
			box("d", "", "sleep"))
		p := s.Running("web")
		s.setHealthz(p, 500)
		p = s.Wait("web", "restarted", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount == 1 && status(p, "c").Ready
		})
		s.contains("the timeline", s.Berth("timeline", "-n", s.ns, "web", "-o", "json"), "Unhealthy, grace 1s")
		if x := status(p, "c").LastTerminationState.Terminated; x == nil || x.ExitCode != 137 {
			t.Errorf("last termination state: got %+v, want exit code 137", x)
		}
		if status(p, "d").RestartCount != 0 {
			t.Error("the other container was restarted")
		}
		s.Event("web", "Unhealthy: Liveness probe failed: HTTP probe failed with statuscode: 500")
		s.Event("web", "Killing: Container c failed liveness probe, will be restarted")
	})
}

func TestStartupProbeDelaysOthersAndKillsContainer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}], "
		s.Pod("slow", "volumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+box("c", mount+
			"startupProbe: {exec: {command: [/bin/testbox, cat, /v/up]}, periodSeconds: 1, failureThreshold: 600}, "+
			"livenessProbe: {tcpSocket: {port: 1}, "+everySecond+"}", "sleep"))
		s.Phase("slow", corev1.PodRunning)
		ctx, cancel := waitContext(t)
		defer cancel()
		// not visible in the pod status
		if err := hosts.WaitFor(ctx, "the startup probe to fail", func() (bool, error) {
			x, err := s.Client.Probes(ctx, s.ns, "slow")
			return err == nil && len(x.Probes) == 2 && x.Probes[0].Failures > 0, nil
		}); err != nil {
			t.Fatal(err)
		}
		if c := status(s.Get("slow"), "c"); c.RestartCount != 0 || c.Started == nil || *c.Started || c.Ready {
			t.Errorf("container during startup: %+v", c)
		}
		s.contains("probes", s.Berth("probes", "-n", s.ns, "slow"), "waiting for the startup probe")
		s.waitWhy("slow", "startup probe failing (exec /bin/testbox cat /v/up)")
		if err := os.WriteFile(dir+"/up", []byte("yes"), 0o644); err != nil {
			t.Fatal(err)
		}
		// Now the liveness probe takes effect.
		s.Event("slow", "Killing: Container c failed liveness probe, will be restarted")
		s.Wait("slow", "restarted", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > 0 })

		s.Pod("never", "restartPolicy: Never\ncontainers:\n"+
			box("c", "startupProbe: {exec: {command: [/bin/testbox, exit, '1']}, periodSeconds: 1, "+
				"failureThreshold: 2}", "sleep"))
		s.Phase("never", corev1.PodFailed)
		s.Event("never", "Unhealthy: Startup probe failed: ")
		if got := s.Event("never", "Killing: "); got != "Killing: Container c failed startup probe" {
			t.Error(got)
		}
	})
}

func TestTCPGRPCAndExecReadinessProbes(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		for kind, c := range map[string]struct{ probe, steps, message string }{
			"tcp":  {"tcpSocket: {port: 9000}", "tcp 9000 /v/up", "connect: connection refused"},
			"grpc": {"grpc: {port: 9000}", "grpc 9000 /v/up", `service unhealthy (responded with "NOT_SERVING")`},
			"exec": {"exec: {command: [/bin/testbox, cat, /v/up]}", "sleep",
				"testbox: cat: open /v/up: no such file or directory"},
		} {
			t.Run(kind, func(t *testing.T) {
				dir := t.TempDir()
				up := func() {
					if err := os.WriteFile(dir+"/up", []byte("yes"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				up()
				s.Pod(kind, "volumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
					box("c", "volumeMounts: [{name: v, mountPath: /v}], readinessProbe: {"+c.probe+", "+everySecond+"}",
						c.steps))
				s.Running(kind)
				if err := os.Remove(dir + "/up"); err != nil {
					t.Fatal(err)
				}
				s.Wait(kind, "not ready", isReady(corev1.ConditionFalse))
				s.contains("the event", s.Event(kind, "Unhealthy: Readiness probe failed: "), c.message)
				up()
				p := s.Wait(kind, "ready again", isReady(corev1.ConditionTrue))
				if status(p, "c").RestartCount != 0 {
					t.Error(brief(p))
				}
			})
		}
	})
}

// TestTLSAndStartupProbesOfEachKind covers what the other tests do not: a server with an untrusted
// certificate, and gRPC and TCP startup and liveness probes.
func TestTLSAndStartupProbesOfEachKind(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}], "
		atStart := func(probe string) string {
			return mount + "startupProbe: {" + probe + ", periodSeconds: 1, failureThreshold: 600}, livenessProbe: {" +
				probe + ", " + everySecond + "}"
		}
		s.Pod("kinds", "volumes: [{name: v, hostPath: {path: "+dir+
			"}}]\nterminationGracePeriodSeconds: 1\ncontainers:\n"+
			box("tls", "readinessProbe: {httpGet: {path: /healthz, port: 8443, scheme: HTTPS}, "+
				everySecond+"}", "serve 8080 8443")+
			box("rpc", atStart("grpc: {port: 9000, service: berth.test}"), "grpc 9000 /v/rpc")+
			box("tcp", atStart("tcpSocket: {port: 9001}"), "tcp 9001 /v/tcp"))
		s.Wait("kinds", "ready over TLS", func(p *corev1.Pod) bool { return status(p, "tls").Ready })
		err := hosts.WaitFor(t.Context(), "failures of both startup probes", func() (bool, error) {
			x, err := s.Client.Probes(t.Context(), s.ns, "kinds")
			failed := 0
			for _, p := range x.Probes {
				if p.Kind == "startup" && p.Failures > 1 {
					failed++
				}
			}
			return failed == 2 && err == nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		p := s.Get("kinds")
		for _, name := range []string{"rpc", "tcp"} {
			if c := status(p, name); c.RestartCount != 0 || c.Started == nil || *c.Started || c.Ready {
				t.Errorf("container %s during startup: %+v", name, c)
			}
			touch(t, dir+"/"+name)
		}
		p = s.Wait("kinds", "ready", isReady(corev1.ConditionTrue))
		s.setHealthz(p, 500)
		s.Wait("kinds", "not ready over TLS", func(p *corev1.Pod) bool { return !status(p, "tls").Ready })
		s.Event("kinds", "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 500")
		for _, c := range []struct{ name, message string }{
			{"rpc", `service unhealthy (responded with "NOT_SERVING")`}, {"tcp", "connect: connection refused"},
		} {
			if err := os.Remove(dir + "/" + c.name); err != nil {
				t.Fatal(err)
			}
			s.Wait("kinds", "with "+c.name+" restarted and starting", func(p *corev1.Pod) bool {
				x := status(p, c.name)
				return x.RestartCount == 1 && x.State.Running != nil && x.Started != nil && !*x.Started
			})
			s.Event("kinds", "Killing: Container "+c.name+" failed liveness probe, will be restarted")
			s.contains("the events", strings.Join(s.Events("kinds"), "\n"), "Liveness probe failed: ", c.message)
		}
		if n := status(s.Get("kinds"), "tls").RestartCount; n != 0 {
			t.Errorf("container tls with a failing readiness probe: got %d restarts, want 0", n)
		}
	})
}

// countHostProcesses returns the number of processes on the machine with exactly these arguments.
func countHostProcesses(t *testing.T, args ...string) (n int) {
	t.Helper()
	want := strings.Join(args, "\x00") + "\x00"
	for _, f := range glob(t, "/proc/[0-9]*/cmdline") {
		if data, err := os.ReadFile(f); err == nil && string(data) == want {
			n++
		}
	}
	return n
}

func TestScenario21_TimedOutCommandLeavesNoProcess(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		// A duration that no other test uses, and another one for the daemons of the containers
		// themselves, which must keep running.
		secs := fmt.Sprint(100000 + time.Now().UnixNano()%100000)
		daemonSecs := secs + ".5"
		// The daemons of the second container start new sessions: with the outputs of the command,
		// without them, and orphaned.
		daemons := map[string]string{secs + ".1": "setsid sleep %s &", secs + ".2": "setsid sleep %s >/dev/null 2>&1 &",
			secs + ".3": "(setsid sleep %s &);"}
		var startDaemons strings.Builder
		for secs, start := range daemons {
			fmt.Fprintf(&startDaemons, start+" ", secs)
		}
		mainScript := "(setsid sleep " + daemonSecs + " &); while :; do sleep 0.1; done"
		s.Pod("hangs", "containers:\n"+sh("c", "readinessProbe: {exec: {command: [sh, -c, 'sleep "+secs+" & sleep "+
			secs+
			"; true']}, timeoutSeconds: 1, periodSeconds: 3, failureThreshold: 1}", mainScript)+
			sh("d", "readinessProbe: {exec: {command: [sh, -c, '"+startDaemons.String()+" sleep "+secs+
				".4']}, timeoutSeconds: 5, periodSeconds: 6, failureThreshold: 1}", mainScript))
		s.Event("hangs", `Unhealthy: Readiness probe failed: command timed out: "sh -c sleep `+secs+` & sleep `+secs+
			`; true" timed out after 1s`)
		for secs := range daemons {
			waitFor(t, "a daemon that sleeps for "+secs, func() bool {
				return countHostProcesses(t, "sleep", secs) > 0
			})
		}
		var runs []nodeapi.ProbeRun
		err := hosts.WaitFor(t.Context(), "three runs of both probes", func() (bool, error) {
			p, err := s.Client.Probes(t.Context(), s.ns, "hangs")
			if err != nil || len(p.Probes) != 2 || len(p.Probes[0].Recent) < 3 || len(p.Probes[1].Recent) < 3 {
				return false, nil //nolint:nilerr // retried
			}
			runs = append(p.Probes[0].Recent, p.Probes[1].Recent...)
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// At most the two processes of a run in progress. Those of the run before it end a moment after it.
		waitFor(t, "the processes of finished runs to end", func() bool {
			return countHostProcesses(t, "sleep", secs) <= 2
		})
		for secs, start := range daemons { // at most one of a run in progress
			waitFor(t, fmt.Sprintf("the processes of finished runs of "+start+" to end", secs), func() bool {
				return countHostProcesses(t, "sleep", secs) <= 1
			})
		}
		for _, r := range runs {
			if r.Seconds > waitTimeout.Seconds() { // a hung command would run for a day
				t.Errorf("a run of a hung command took %.1f s", r.Seconds)
			}
		}
		if n := countHostProcesses(t, "sleep", daemonSecs); n != 2 {
			t.Errorf("got %d background processes of the containers, want 2", n)
		}
	})
}

// TestUnsetReadinessGateKeepsPodUnready uses a static pod on a standalone node, where no client can set
// the condition of a readiness gate. The pod stays unready and reports the reason. Tests with an API
// server cover a gate whose condition is true.
func TestUnsetReadinessGateKeepsPodUnready(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("gated", "readinessGates: [{conditionType: example.com/open}]\ncontainers:\n"+
			box("c", "readinessProbe: {httpGet: {path: /healthz, port: 8080}, "+everySecond+"}", "serve"))
		p := s.Wait("gated", "with its containers ready", func(p *corev1.Pod) bool {
			return condition(p, corev1.ContainersReady) == corev1.ConditionTrue
		})
		reason, message, ready := conditionOf(p, corev1.PodReady)
		s.contains("the log", s.Agent.Log(), "spec.readinessGates: the conditions of readiness gates are not set on "+
			"a standalone node")
		if ready || reason != "ReadinessGatesNotReady" ||
			message != `corresponding condition of pod readiness gate "example.com/open" does not exist.` {
			t.Errorf("Ready %v %s: %s", ready, reason, message)
		}
		if !status(p, "c").Ready {
			t.Error(brief(p))
		}
		s.contains("ps", s.Berth("ps", "-n", s.ns, "gated", "-o", "wide"), "0/1")
		s.contains("describe", s.Berth("describe", "-n", s.ns, "gated"), "example.com/open")
	})
}

func TestSidecarsAreProbed(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		s.Pod("cars", "volumes: [{name: v, hostPath: {path: "+dir+"}}]\ninitContainers:\n"+
			box("car", "restartPolicy: Always, volumeMounts: [{name: v, mountPath: /v}], "+
				"startupProbe: {exec: {command: [/bin/testbox, cat, /v/up]}, periodSeconds: 1, "+
				"failureThreshold: 600}, "+
				"readinessProbe: {httpGet: {path: /healthz, port: 8080}, "+everySecond+
				"}, livenessProbe: {exec: {command: [/bin/testbox, cat, /v/up]}, "+everySecond+"}", "serve")+
			"containers:\n"+box("main", "", "sleep"))
		p := s.Wait("cars", "with its sidecar running", func(p *corev1.Pod) bool {
			return status(p, "car").State.Running != nil
		})
		s.waitWhy("cars", "startup probe")
		if w := status(s.Get("cars"), "main").State.Waiting; w == nil ||
			condition(p, corev1.PodInitialized) != corev1.ConditionFalse {
			t.Errorf("the main container did not wait for its sidecar: %s", brief(p))
		}
		if err := os.WriteFile(dir+"/up", []byte("yes"), 0o644); err != nil {
			t.Fatal(err)
		}
		p = s.Running("cars")
		s.setHealthz(p, 503)
		s.Wait("cars", "not ready because of its sidecar", isReady(corev1.ConditionFalse))
		if err := os.Remove(dir + "/up"); err != nil {
			t.Fatal(err)
		}
		p = s.Wait("cars", "with its sidecar restarted", func(p *corev1.Pod) bool {
			return status(p, "car").RestartCount > 0
		})
		if status(p, "main").RestartCount != 0 {
			t.Error("the main container was restarted")
		}
		s.Event("cars", "Killing: Container car failed liveness probe, will be restarted")
	})
}

func TestTerminatingPodRunsOnlyReadinessProbe(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		probe := "{httpGet: {path: /healthz, port: 8080}, " + everySecond + "}"
		s.Pod("web", "terminationGracePeriodSeconds: 60\ncontainers:\n"+
			box("c", "readinessProbe: "+probe+", livenessProbe: {httpGet: {path: /healthz, port: 8080}, "+
				"terminationGracePeriodSeconds: 1, "+everySecond+"}", "on-term 20s 7", "serve"))
		p := s.Running("web")
		s.Remove("web")
		s.Wait("web", "terminating", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		s.setHealthz(p, 503)
		s.Wait("web", "terminating and not ready", func(p *corev1.Pod) bool {
			return p.DeletionTimestamp != nil && status(p, "c").State.Running != nil &&
				condition(p, corev1.PodReady) == corev1.ConditionFalse
		})
		s.WaitDeleted("web")
		for _, e := range s.Events("web") {
			if strings.Contains(e, "iveness probe") {
				t.Errorf("unexpected event during termination: %s", e)
			}
		}
	})
}

func TestRedirectToAnotherHostIsNotFollowed(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("web", "containers:\n"+
			box("c", "readinessProbe: {httpGet: {path: '/redirect?to=http://192.0.2.1/', port: 8080}, "+everySecond+
				"}, "+
				"livenessProbe: {httpGet: {path: '/redirect?to=/healthz', port: 8080}, "+everySecond+"}", "serve"))
		s.Running("web")
		s.Event("web", "ProbeWarning: Readiness probe warning: Probe terminated redirects")
		for _, e := range s.Events("web") {
			if strings.Contains(e, "Liveness") {
				t.Error(e)
			}
		}
	})
}

// TestMissingProbeCommandCausesOneEvent checks that a probe whose command does not exist has the result
// Unknown, which has no effect. Each probe has one event, although the error of each attempt contains
// another exec ID.
func TestMissingProbeCommandCausesOneEvent(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		probe := "{exec: {command: [/no/such]}, " + everySecond + "}"
		s.Pod("missing", "containers:\n"+box("c", "readinessProbe: "+probe+", livenessProbe: "+probe, "sleep"))
		s.Phase("missing", corev1.PodRunning)
		err := hosts.WaitFor(t.Context(), "three attempts of both probes", func() (bool, error) {
			x, err := s.Client.Probes(t.Context(), s.ns, "missing")
			return err == nil && len(x.Probes) == 2 && len(x.Probes[0].Recent) > 2 && len(x.Probes[1].Recent) > 2, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		events := 0
		for _, e := range s.Events("missing") {
			if strings.HasPrefix(e, "Unhealthy: ") {
				events++
				s.contains("the event", e, "probe errored and resulted in unknown state", "/no/such",
					"no such file or directory")
			}
		}
		if c := status(s.Get("missing"), "c"); events != 2 || c.RestartCount != 0 || c.Ready {
			t.Errorf("got %d events, want 2: %+v", events, c)
		}
	})
}

func TestInvalidProbesAreRejectedByField(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		for name, c := range map[string]struct{ probe, field string }{
			"period": {"livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}",
				"spec.containers[0].livenessProbe.periodSeconds"},
			"scheme": {"readinessProbe: {httpGet: {port: 1, scheme: FTP}}",
				"spec.containers[0].readinessProbe.httpGet.scheme"},
			"port": {"startupProbe: {httpGet: {port: web}}", "spec.containers[0].startupProbe.httpGet.port"},
		} {
			s.Put(name, podYAML(name, "", "containers:\n"+box("c", c.probe, "sleep")))
			err := hosts.WaitFor(t.Context(), "the rejection of "+name, func() (bool, error) {
				n, err := s.Client.Node(t.Context())
				for _, f := range n.InvalidManifests {
					if strings.Contains(f.Path, s.ns+"-"+name) && strings.Contains(f.Field+" "+f.Message, c.field) {
						return true, nil
					}
				}
				return false, err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}
