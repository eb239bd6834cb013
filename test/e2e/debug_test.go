package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/hosts"
)

func TestScenario24_RestartSkipsBackOff(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("stays", "containers:\n"+box("a", "", "print up", "sleep")+box("b", "", "sleep"))
		before := s.Running("stays")
		s.contains("restart", s.Berth("restart", "-n", s.ns, "stays/b"), "pod/stays (b) restarted")
		after := s.Wait("stays", "restarted in b", func(p *corev1.Pod) bool {
			return status(p, "b").RestartCount == 1 && status(p, "b").Ready
		})
		if status(after, "a").ContainerID != status(before, "a").ContainerID || after.UID != before.UID || after.Status.PodIP != before.Status.PodIP {
			t.Error("more than b was restarted")
		}
		s.Event("stays", "Killing: Container b is restarted because a user asked for it")
		s.Berth("restart", s.ns+"/stays")
		s.Wait("stays", "restarted as a whole", func(p *corev1.Pod) bool {
			return status(p, "a").RestartCount == 1 && status(p, "b").RestartCount == 2 && status(p, "a").Ready && status(p, "b").Ready
		})
		// With a back-off that a user would rather not wait for.
		s.Pod("fails", "volumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}]", "echo run; test -e /v/fixed || exit 1; sleep 1000")+
			sh("d", "volumeMounts: [{name: v, mountPath: /v}]", "sleep 1000"))
		s.Waiting("fails", "c", "CrashLoopBackOff")
		s.Exec("fails", "d", "touch", "/v/fixed")
		s.Berth("restart", "-n", s.ns, "fails", "-c", "c")
		s.Running("fails")
		for what, args := range map[string][]string{
			"pod stays has no container z": {"stays", "-c", "z"},
			`pods "nobody" not found`:      {"nobody"},
		} {
			if out, err := s.Try(append([]string{"restart", "-n", s.ns}, args...)...); err == nil || !strings.Contains(out, what) {
				t.Errorf("restart %v: %v %s, want %q", args, err, out, what)
			}
		}
	})
}

func TestDebugContainerSharesTargetProcesses(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("plain", "containers:\n"+box("app", "", "write /made here", "sleep"))
		before := s.Running("plain")
		out := s.Berth("debug", "-n", s.ns, "plain", "--image", "busybox:1.36", "--target", "app", "-c", "look", "--attach", "--",
			"sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' '; cat /proc/1/root/made; hostname")
		s.contains("debug", out, "testbox", "sleep", "here", "plain")
		cmd := s.Agent.Command(t.Context(), "debug", "-i", "-q", "-n", s.ns, "plain", "--image", "busybox:1.36", "-c", "shell", "--", "sh")
		cmd.Stdin = strings.NewReader("echo typed $((6*7)); exit\n")
		text, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(text), "typed 42") {
			t.Errorf("debug -i: %v %q", err, text)
		}
		if out := s.Berth("logs", "-n", s.ns, "plain", "-c", "look"); !strings.Contains(out, "here") {
			t.Errorf("its log is %q", out)
		}
		p := s.Get("plain")
		if p.UID != before.UID || len(p.Spec.EphemeralContainers) != 2 || len(p.Status.EphemeralContainerStatuses) != 2 || status(p, "app").RestartCount != 0 {
			t.Errorf("the pod has %d ephemeral containers: %s", len(p.Spec.EphemeralContainers), brief(p))
		}
		s.contains("describe", s.Berth("describe", "-n", s.ns, "plain"), "Ephemeral Containers:", "look:", "shell:")
		for what, args := range map[string][]string{
			"Duplicate value":     {"--image", "busybox:1.36", "-c", "app"},
			"targetContainerName": {"--image", "busybox:1.36", "--target", "nope"},
			"--image is required": {},
			"ErrImageNeverPull":   {"--image", "docker.io/library/none:1", "--image-pull-policy", "Never", "--attach"},
		} {
			if out, err := s.Try(append([]string{"debug", "-n", s.ns, "plain"}, args...)...); err == nil || !strings.Contains(out, what) {
				t.Errorf("debug %v: %v %s, want %q", args, err, out, what)
			}
		}
	})
}

// TestDebugProfiles looks at capabilities from inside: those of
// tracing (19), of administering the network (12) and of the system (21).
func TestDebugProfiles(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		s.Pod("rights", "containers:\n"+box("app", "", "sleep"))
		s.Running("rights")
		for profile, want := range map[string]string{"general": "19", "baseline": "", "netadmin": "12", "sysadmin": "12 19 21"} {
			out := s.Berth("debug", "-q", "-n", s.ns, "rights", "--image", "busybox:1.36", "-c", profile, "--profile", profile, "--attach", "--",
				"sh", "-c", "grep CapEff /proc/self/status")
			var have uint64
			if _, err := fmt.Sscanf(out, "CapEff:\t%x", &have); err != nil {
				t.Fatalf("%s: %q: %v", profile, out, err)
			}
			var got []string
			for _, bit := range []int{12, 19, 21} {
				if have&(1<<bit) != 0 {
					got = append(got, strconv.Itoa(bit))
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s has %v of them, want %s", profile, got, want)
			}
		}
		// The image's user is root, which this profile refuses.
		if out, err := s.Try("debug", "-n", s.ns, "rights", "--image", "busybox:1.36", "-c", "restricted", "--profile", "restricted", "--attach", "--", "true"); err == nil || !strings.Contains(out, "CreateContainerConfigError") {
			t.Errorf("restricted: %v %s", err, out)
		}
	})
}

// TestLogsAndEventsByLabel asks for two of three pods.
func TestLogsAndEventsByLabel(t *testing.T) {
	both(t, func(t *testing.T, s *Space) {
		for name, app := range map[string]string{"one": "a", "two": "a", "three": "b"} {
			s.Put(name, podYAML(name, "labels: {app: "+app+"}", "containers:\n"+box("c", "", "print this-is-"+name, "sleep")))
		}
		for _, name := range []string{"one", "two", "three"} {
			s.Running(name)
			s.Said(name, "c", "this-is-"+name)
		}
		out := s.Berth("logs", "-n", s.ns, "-l", "app=a", "--prefix")
		s.contains("logs", out, "[pod/one/c] this-is-one", "[pod/two/c] this-is-two")
		events := s.Berth("events", "-n", s.ns, "-l", "app=a")
		s.contains("events", events, "pod/one", "pod/two")
		if strings.Contains(out+events, "three") {
			t.Errorf("the third is shown:\n%s%s", out, events)
		}
	})
}

// created reports whether the runtime has a container of that name.
func (s *Space) created(name string) (bool, error) {
	list, err := s.Host.Runtime.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.container.name": name}},
	})
	return len(list.GetContainers()) > 0, err
}

// TestRequestedChangesSurviveAgentRestart kills the agent right after it has taken a
// restart and debug containers on: during their starts, some of which the
// kill cuts off.
func TestRequestedChangesSurviveAgentRestart(t *testing.T) {
	alone(t, nodeOptions{}, func(t *testing.T, s *Space) {
		s.Pod("keeps", "hostNetwork: true\nterminationGracePeriodSeconds: 3\ncontainers:\n"+box("slow", "", "ignore-term", "sleep")+box("b", "", "sleep"))
		s.Running("keeps")
		const looks = 6
		for i := range looks {
			look := fmt.Sprint("look-", i)
			cmd := s.Agent.Command(t.Context(), "debug", "-n", s.ns, "keeps", "--image", "busybox:1.36", "-c", look, "--", "sleep", "1000")
			if i == 0 {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("debug: %v: %s", err, out)
				}
			} else { // it is about to be started: kept, whether or not that has been said
				var asked sync.WaitGroup
				asked.Go(func() { _ = cmd.Run() })
				t.Cleanup(asked.Wait) // t's context has ended by then, and the command with it
				if err := hosts.WaitFor(t.Context(), look+" to be created", func() (bool, error) { return s.created(look) }); err != nil {
					t.Fatal(err)
				}
			}
			s.Killed()
			s.Wait("keeps", "looked into by "+look, func(p *corev1.Pod) bool {
				all := p.Status.EphemeralContainerStatuses
				return len(all) == i+1 && all[i].Name == look && all[i].State.Running != nil
			})
		}
		s.Berth("restart", "-n", s.ns, "keeps/slow") // takes the grace
		s.Killed()
		p := s.Wait("keeps", "restarted in slow", func(p *corev1.Pod) bool {
			return status(p, "slow").RestartCount == 1 && status(p, "slow").Ready && status(p, "b").Ready
		})
		if status(p, "b").RestartCount != 0 {
			t.Error("b was restarted too")
		}
		e := p.Status.EphemeralContainerStatuses
		if len(e) != looks || slices.ContainsFunc(e, func(c corev1.ContainerStatus) bool { return c.State.Running == nil }) {
			t.Errorf("the ephemeral containers are %v", e)
		}
	})
}
