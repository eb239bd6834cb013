package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

func TestRestartPolicies(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("never-ok", "restartPolicy: Never\ncontainers:\n"+box("c", "", "exit 0"))
		s.Pod("never-bad", "restartPolicy: Never\ncontainers:\n"+box("c", "", "exit 5")+box("d", "", "exit 0"))
		s.Pod("on-failure", "restartPolicy: OnFailure\nvolumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}]",
				"if [ -e /v/second ]; then exit 0; fi; touch /v/second; exit 4"))
		s.Pod("always", "containers:\n"+box("c", "", "exit 0"))

		p := s.Phase("never-ok", corev1.PodSucceeded)
		if x := status(p, "c").State.Terminated; x == nil || x.ExitCode != 0 || x.Reason != "Completed" {
			t.Errorf("never-ok: %s", brief(p))
		}
		if condition(p, corev1.PodReady) != corev1.ConditionFalse ||
			condition(p, corev1.PodInitialized) != corev1.ConditionTrue {
			t.Errorf("conditions: %+v", p.Status.Conditions)
		}
		p = s.Phase("never-bad", corev1.PodFailed)
		if x := status(p, "c").State.Terminated; x == nil || x.ExitCode != 5 || x.Reason != "Error" ||
			status(p, "c").RestartCount != 0 {
			t.Errorf("never-bad: %s", brief(p))
		}
		p = s.Phase("on-failure", corev1.PodSucceeded)
		c := status(p, "c")
		if last := c.LastTerminationState.Terminated; c.RestartCount != 1 || c.State.Terminated.ExitCode != 0 ||
			last == nil || last.ExitCode != 4 {
			t.Errorf("on-failure: %s", brief(p))
		}
		p = s.Wait("always", "restarted twice", func(p *corev1.Pod) bool { return status(p, "c").RestartCount >= 2 })
		if p.Status.Phase != corev1.PodRunning {
			t.Errorf("always: %s", brief(p))
		}
	})
}

func TestCrashLoopBackOffIsReported(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("crash", "containers:\n"+box("c", "", "print bye", "exit 7")+box("good", "", "sleep"))
		p := s.Waiting("crash", "c", "CrashLoopBackOff")
		c := status(p, "c")
		if !strings.Contains(c.State.Waiting.Message, "restarting failed container=c pod=crash_"+s.ns) {
			t.Errorf("message %q", c.State.Waiting.Message)
		}
		if x := c.LastTerminationState.Terminated; x == nil || x.ExitCode != 7 || x.Reason != "Error" ||
			x.FinishedAt.IsZero() {
			t.Errorf("last state %+v", x)
		}
		if p.Status.Phase != corev1.PodRunning || condition(p, corev1.PodReady) != corev1.ConditionFalse {
			t.Errorf("phase %s, conditions %+v", p.Status.Phase, p.Status.Conditions)
		}
		waitFor(t, "the explanation of the back-off", func() bool { // the next start may be in progress
			explanation, err := s.Client.Why(t.Context(), s.ns, "crash")
			return err == nil && slices.ContainsFunc(explanation.WaitingFor, func(x nodeapi.WaitReason) bool {
				return x.Reason == "CrashLoopBackOff" && x.Target == "c"
			})
		})
		waitFor(t, "describe to show the next retry", func() bool { // the container may be running at the moment
			_, rest, found := strings.Cut(s.Berth("describe", "-n", s.ns, "crash"), "CrashLoopBackOff")
			return found && strings.Contains(strings.Split(rest, "Last State:")[0], "Next Retry:")
		})
		p = s.Wait("crash", "restarted three times", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount >= 3
		})
		if status(p, "good").RestartCount != 0 {
			t.Errorf("the other container was restarted: %s", brief(p))
		}
		s.Event("crash", "BackOff: ")
	})
}

func TestInitContainersRunInOrderAndAreRetried(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		s.Pod("order", `
			volumes: [{name: v, emptyDir: {}}]
			initContainers:
			`+box("one", mount, "append /v/log one")+`
			`+sh("two", mount, "echo two >> /v/log; [ $(grep -c two /v/log) -ge 2 ]")+`
			`+box("three", mount, "append /v/log three")+`
			containers:
			`+box("main", mount, "cat /v/log", end, "sleep"))
		p := s.Wait("order", "initializing", func(p *corev1.Pod) bool {
			return status(p, "two").LastTerminationState.Terminated != nil
		})
		if w := status(p, "main").State.Waiting; w == nil || w.Reason != "PodInitializing" ||
			p.Status.Phase != corev1.PodPending ||
			condition(p, corev1.PodInitialized) != corev1.ConditionFalse {
			t.Errorf("initializing pod: %s", brief(p))
		}
		if got := s.WaitOutput("order", "main"); !strings.HasPrefix(got, "one\ntwo\ntwo\nthree\n") {
			t.Errorf("unexpected order: %q", got)
		}
		p = s.Running("order")
		if n := []int32{status(p, "one").RestartCount, status(p, "two").RestartCount,
			status(p, "three").RestartCount}; !slices.Equal(n, []int32{0, 1, 0}) {
			t.Errorf("got restart counts %v, want [0 1 0]", n)
		}

		s.Pod("fails", "restartPolicy: Never\ninitContainers:\n"+box("bad", "", "exit 9")+"containers:\n"+
			box("main", "", "sleep"))
		p = s.Phase("fails", corev1.PodFailed)
		if x := status(p, "bad").State.Terminated; x == nil || x.ExitCode != 9 ||
			status(p, "main").State.Waiting == nil {
			t.Errorf("with Never: %s", brief(p))
		}
	})
}

func TestScenario25_SidecarsStartBeforeAndStopAfterInReverseOrder(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		script := func(name string) string {
			return fmt.Sprintf("trap 'echo stop-%[1]s >> /v/log; exit 0' TERM; echo start-%[1]s >> /v/log; while :; "+
				"do sleep 0.05; done", name)
		}
		s.Pod("cars", `
			terminationGracePeriodSeconds: 20
			volumes: [{name: v, hostPath: {path: `+dir+`}}]
			initContainers:
			`+sh("a", "restartPolicy: Always, "+mount, script("a"))+`
			`+sh("init", mount, "echo init >> /v/log")+`
			`+sh("b", "restartPolicy: Always, "+mount, script("b"))+`
			containers:
			`+sh("main", mount, script("main")))
		s.Running("cars")
		waitFor(t, "all containers to trap SIGTERM", func() bool {
			log := readFile(t, dir+"/log")
			return strings.Contains(log, "start-a\n") && strings.Contains(log, "start-b\n") &&
				strings.Contains(log, "start-main\n")
		})
		s.Remove("cars")
		s.WaitDeleted("cars")
		got := strings.Fields(readFile(t, dir+"/log"))
		// The output of containers that run in parallel has no fixed order. Check only the order that
		// berth enforces.
		for _, pair := range [][2]string{{"start-a", "start-main"}, {"start-b", "stop-b"}, {"init", "start-main"},
			{"stop-main", "stop-b"}, {"stop-b", "stop-a"}} {
			if x, y := slices.Index(got, pair[0]), slices.Index(got, pair[1]); x < 0 || y < 0 || x > y {
				t.Errorf("%s is not before %s in %v", pair[0], pair[1], got)
			}
		}

		// A pod succeeds when its main container succeeds, although its sidecar still runs.
		s.Pod("job", "restartPolicy: Never\ninitContainers:\n"+sh("car", "restartPolicy: Always",
			"trap 'exit 0' TERM; while :; do sleep 0.05; done")+
			"containers:\n"+box("main", "", "exit 0"))
		s.Phase("job", corev1.PodSucceeded)
		// A sidecar that exits is restarted while the main containers run.
		s.Pod("again", "initContainers:\n"+box("car", "restartPolicy: Always", "sleep 200ms", "exit 1")+"containers:\n"+
			box("main", "", "sleep"))
		p := s.Wait("again", "with its sidecar restarted", func(p *corev1.Pod) bool {
			return status(p, "car").RestartCount >= 1
		})
		if status(p, "main").RestartCount != 0 {
			t.Error(brief(p))
		}
	})
}

func TestActiveDeadlineFailsPod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		// The deadline counts from the start of the pod. On a busy node it may expire before the
		// container runs. Such a pod fails too, so try again with a longer deadline to check the
		// container.
		for seconds := 8; seconds <= 64; seconds *= 2 {
			name := fmt.Sprintf("late-%d", seconds)
			s.Pod(name, fmt.Sprintf("activeDeadlineSeconds: %d\nterminationGracePeriodSeconds: 1\ncontainers:\n",
				seconds)+box("c", "", "sleep"))
			p := s.Phase(name, corev1.PodFailed)
			if p.Status.Reason != "DeadlineExceeded" || !strings.Contains(p.Status.Message, "deadline") {
				t.Errorf("reason %q, message %q", p.Status.Reason, p.Status.Message)
			}
			if x := status(p, "c").State.Terminated; x != nil {
				if x.ExitCode != 143 {
					t.Errorf("container: %s", brief(p))
				}
				return
			}
		}
		t.Error("no container started before its deadline")
	})
}

func TestImageChangeRestartsContainerInPlace(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		text := podYAML("edit", "", "containers:\n"+box("c", "", "id", end, "sleep")+box("d", "", "sleep"))
		s.Put("edit", text)
		before := s.Running("edit")
		s.Put("edit", strings.Replace(text, "testbox:1", "testbox:user", 1))
		p := s.Wait("edit", "running the new image", func(p *corev1.Pod) bool {
			return strings.HasSuffix(status(p, "c").Image, "testbox:user") && status(p, "c").Ready
		})
		if p.UID != before.UID || p.Status.PodIP != before.Status.PodIP {
			t.Errorf("pod was replaced: got %s %s, want %s %s", p.UID, p.Status.PodIP, before.UID, before.Status.PodIP)
		}
		if c := status(p, "c"); c.RestartCount != 1 || status(p, "d").ContainerID != status(before, "d").ContainerID ||
			status(p, "d").RestartCount != 0 {
			t.Error(brief(p))
		}
		s.contains("the log", s.WaitLog("edit", "c", "uid=1000"), end[len("print "):])
		s.Event("edit", "Killing: Container c definition changed, will be restarted")
	})
}

func TestScenario13_EditReplacesPodWithoutOverlap(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		text := func(n int) string {
			return podYAML("edit", "", fmt.Sprintf("terminationGracePeriodSeconds: 5\ncontainers:\n"+
				box("c", "env: [{name: N, value: '%d'}]", "on-term 300ms", "sleep"), n))
		}
		seen := map[string]bool{}
		runningPods := func(now map[string]*corev1.Pod) (n int) {
			for uid, p := range now {
				seen[uid] = true
				if status(p, "c").State.Running != nil {
					n++
				}
			}
			return n
		}
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		s.Put("edit", text(0))
		first := s.Running("edit").UID
		// Edit faster than pods can be replaced. The last edit must take effect.
		for n := 1; n <= 5; n++ {
			s.Put("edit", text(n))
			time.Sleep(30 * time.Millisecond) // spaces the edits, does not wait for a state
		}
		err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool {
			if runningPods(now) > 1 {
				t.Error("two pods run at the same time")
			}
			for _, p := range now {
				if p.UID != first && p.Spec.Containers[0].Env[0].Value == "5" &&
					condition(p, corev1.PodReady) == corev1.ConditionTrue {
					return len(now) == 1
				}
			}
			return false
		})
		if err != nil {
			t.Fatalf("wait for the pod of the last edit: %v", err)
		}
		if n := strings.Count(s.Berth("ps", "-n", s.ns, "-o", "name"), "edit"); n != 1 {
			t.Errorf("got %d pods, want 1", n)
		}
	})
}

func TestPodWaitingForItsNameIsShown(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		text := func(n int) string { // the first pod terminates when the test has seen the second one wait
			return podYAML("replaced", "", fmt.Sprintf("terminationGracePeriodSeconds: %d\ncontainers:\n"+
				box("c", "env: [{name: N, value: '%d'}]", "ignore-term", "print ready", "await /end"), 600-599*n, n))
		}
		s.Put("replaced", text(0))
		first := s.Running("replaced").UID
		s.WaitLog("replaced", "c", "ready")
		s.Put("replaced", text(1))
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		err := s.watch(ctx, func(_ nodeapi.PodEvent, now map[string]*corev1.Pod) bool {
			for _, p := range now {
				if p.UID != first && p.Status.Reason == "NameTaken" {
					return true
				}
			}
			return false
		})
		if err != nil {
			t.Fatalf("wait for the replacement pod in the list: %v", err)
		}
		s.contains("ps", s.Berth("ps", "-n", s.ns), "replaced", "Terminating", "NameTaken")
		s.waitWhy("replaced", "is terminating", "Another pod with this name is waiting for", "NameTaken", string(first))
		s.contains("timeline", s.Berth("timeline", "-n", s.ns, "replaced"), "start c") // of the pod that has the name
		s.Exec("replaced", "c", "/bin/testbox", "write", "/end", "now")
		s.Wait("replaced", "replaced and ready", func(p *corev1.Pod) bool {
			return p.UID != first && condition(p, corev1.PodReady) == corev1.ConditionTrue
		})
	})
}

func TestDeletedFileTerminatesPodWithGracePeriod(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		mount := "volumeMounts: [{name: v, mountPath: /v}]"
		s.Pod("graceful", "terminationGracePeriodSeconds: 20\nvolumes: [{name: v, hostPath: {path: "+dir+
			"}}]\ncontainers:\n"+
			sh("c", mount, "trap 'sleep 1; echo exited on SIGTERM > /v/last; exit 0' TERM; touch /v/ready; "+
				"while :; do sleep 0.05; done"))
		s.Pod("ignores-term", "terminationGracePeriodSeconds: 1\ncontainers:\n"+
			box("c", "", "ignore-term", "print ready", "sleep"))
		s.Running("graceful")
		waitFor(t, "the container to trap SIGTERM", func() bool { return exists(dir + "/ready") })
		s.WaitLog("ignores-term", "c", "ready")
		s.Running("ignores-term")
		start := time.Now()
		s.Remove("ignores-term")
		p := s.Wait("ignores-term", "terminating", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if g := p.DeletionGracePeriodSeconds; g == nil || *g != 1 {
			t.Errorf("got deletionGracePeriodSeconds %v, want 1", g)
		}
		s.WaitDeleted("ignores-term")
		if took := time.Since(start); took < time.Second {
			t.Errorf("deleted after %s, before the end of the grace period", took)
		}
		s.Remove("graceful")
		s.WaitDeleted("graceful")
		if got := readFile(t, dir+"/last"); got != "exited on SIGTERM\n" {
			t.Errorf("got output %q, want \"exited on SIGTERM\\n\"", got)
		}
		s.Event("graceful", "Killing: Stopping container c")
	})
}

func TestTerminationMessages(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("file", "restartPolicy: Never\ncontainers:\n"+
			box("std", "", "write /dev/termination-log out of memory", "exit 1")+
			box("own", "terminationMessagePath: /tmp/last", "write /tmp/last custom path", "exit 1")+
			box("fall", "terminationMessagePolicy: FallbackToLogsOnError", "print first", "print reason in log",
				"exit 1")+
			box("fine", "terminationMessagePolicy: FallbackToLogsOnError", "print ignored", "exit 0")+
			box("long", "", "fill /dev/termination-log 1", "exit 1"))
		p := s.Phase("file", corev1.PodFailed)
		for name, want := range map[string]string{"std": "out of memory", "own": "custom path",
			"fall": "first\nreason in log\n", "fine": ""} {
			x := status(p, name).State.Terminated
			if x == nil || x.Message != want {
				t.Errorf("%s: %+v, want %q", name, x, want)
			}
		}
		if x := status(p, "long").State.Terminated; x == nil || len(x.Message) > 4096 {
			t.Errorf("a long termination message is not truncated")
		}
	})
}
