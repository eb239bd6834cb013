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
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("stays", "containers:\n"+box("a", "", "print up", "sleep")+box("b", "", "sleep"))
		before := s.Running("stays")
		s.contains("restart", s.Berth("restart", "-n", s.ns, "stays/b"), "pod/stays (b) restarted")
		after := s.Wait("stays", "running with b restarted", func(p *corev1.Pod) bool {
			return status(p, "b").RestartCount == 1 && status(p, "b").Ready
		})
		if status(after, "a").ContainerID != status(before, "a").ContainerID || after.UID != before.UID ||
			after.Status.PodIP != before.Status.PodIP {
			t.Error("a restart of b restarted other containers")
		}
		s.Event("stays", "Killing: Container b is restarted because a user requested it")
		s.Berth("restart", s.ns+"/stays")
		s.Wait("stays", "restarted as a whole", func(p *corev1.Pod) bool {
			return status(p, "a").RestartCount == 1 && status(p, "b").RestartCount == 2 && status(p, "a").Ready &&
				status(p, "b").Ready
		})
		// A restart skips the back-off.
		s.Pod("fails", "volumes: [{name: v, emptyDir: {}}]\ncontainers:\n"+
			sh("c", "volumeMounts: [{name: v, mountPath: /v}]", "echo run; test -e /v/fixed || exit 1; sleep 1000")+
			sh("d", "volumeMounts: [{name: v, mountPath: /v}]", "sleep 1000"))
		s.Waiting("fails", "c", "CrashLoopBackOff")
		s.Exec("fails", "d", "touch", "/v/fixed")
		s.Berth("restart", "-n", s.ns, "fails", "-c", "c")
		s.Running("fails")
		for want, args := range map[string][]string{
			"pod stays has no container z": {"stays", "-c", "z"},
			`pods "missing" not found`:     {"missing"},
		} {
			if out, err := s.Try(append([]string{"restart", "-n", s.ns}, args...)...); err == nil ||
				!strings.Contains(out, want) {
				t.Errorf("restart %v: %v %s, want %q", args, err, out, want)
			}
		}
	})
}

func TestDebugContainerSharesTargetProcesses(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("plain", "containers:\n"+box("app", "", "write /made here", "sleep"))
		before := s.Running("plain")
		out := s.Berth("debug", "-n", s.ns, "plain", "--image", "busybox:1.36", "--target", "app", "-c", "inspect",
			"--attach", "--",
			"sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' '; cat /proc/1/root/made; hostname")
		s.contains("debug", out, "testbox", "sleep", "here", "plain")
		cmd := s.Agent.Command(t.Context(), "debug", "-i", "-q", "-n", s.ns, "plain", "--image", "busybox:1.36", "-c",
			"shell", "--", "sh")
		cmd.Stdin = strings.NewReader("echo typed $((6*7)); exit\n")
		text, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(text), "typed 42") {
			t.Errorf("debug -i: %v %q", err, text)
		}
		if out := s.Berth("logs", "-n", s.ns, "plain", "-c", "inspect"); !strings.Contains(out, "here") {
			t.Errorf("got log %q", out)
		}
		p := s.Get("plain")
		if p.UID != before.UID || len(p.Spec.EphemeralContainers) != 2 ||
			len(p.Status.EphemeralContainerStatuses) != 2 || status(p, "app").RestartCount != 0 {
			t.Errorf("got %d ephemeral containers, want 2: %s", len(p.Spec.EphemeralContainers), brief(p))
		}
		s.contains("describe", s.Berth("describe", "-n", s.ns, "plain"), "Ephemeral Containers:", "inspect:", "shell:")
		for want, args := range map[string][]string{
			"Duplicate value":     {"--image", "busybox:1.36", "-c", "app"},
			"targetContainerName": {"--image", "busybox:1.36", "--target", "nope"},
			"--image is required": {},
			"ErrImageNeverPull":   {"--image", "docker.io/library/none:1", "--image-pull-policy", "Never", "--attach"},
		} {
			if out, err := s.Try(append([]string{"debug", "-n", s.ns, "plain"}, args...)...); err == nil ||
				!strings.Contains(out, want) {
				t.Errorf("debug %v: %v %s, want %q", args, err, out, want)
			}
		}
	})
}

// TestDebugProfiles checks the effective capabilities of each profile: CAP_SYS_PTRACE (19),
// CAP_NET_ADMIN (12) and CAP_SYS_ADMIN (21).
func TestDebugProfiles(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("capabilities", "containers:\n"+box("app", "", "sleep"))
		s.Running("capabilities")
		for profile, want := range map[string]string{"general": "19", "baseline": "", "netadmin": "12",
			"sysadmin": "12 19 21"} {
			out := s.Berth("debug", "-q", "-n", s.ns, "capabilities", "--image", "busybox:1.36", "-c", profile,
				"--profile",
				profile, "--attach", "--",
				"sh", "-c", "grep CapEff /proc/self/status")
			var effective uint64
			if _, err := fmt.Sscanf(out, "CapEff:\t%x", &effective); err != nil {
				t.Fatalf("%s: %q: %v", profile, out, err)
			}
			var got []string
			for _, bit := range []int{12, 19, 21} {
				if effective&(1<<bit) != 0 {
					got = append(got, strconv.Itoa(bit))
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("profile %s: got capabilities %v, want %s", profile, got, want)
			}
		}
		// The image runs as root, which this profile forbids.
		if out, err := s.Try("debug", "-n", s.ns, "capabilities", "--image", "busybox:1.36", "-c", "restricted",
			"--profile",
			"restricted", "--attach", "--", "true"); err == nil ||
			!strings.Contains(out, "CreateContainerConfigError") {
			t.Errorf("restricted: %v %s", err, out)
		}
	})
}

// TestLogsAndEventsByLabel selects two of three pods.
func TestLogsAndEventsByLabel(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		for name, app := range map[string]string{"one": "a", "two": "a", "three": "b"} {
			s.Put(name, podYAML(name, "labels: {app: "+app+"}", "containers:\n"+box("c", "", "print this-is-"+name,
				"sleep")))
		}
		for _, name := range []string{"one", "two", "three"} {
			s.Running(name)
			s.WaitLog(name, "c", "this-is-"+name)
		}
		out := s.Berth("logs", "-n", s.ns, "-l", "app=a", "--prefix")
		s.contains("logs", out, "[pod/one/c] this-is-one", "[pod/two/c] this-is-two")
		events := s.Berth("events", "-n", s.ns, "-l", "app=a")
		s.contains("events", events, "pod/one", "pod/two")
		if strings.Contains(out+events, "three") {
			t.Errorf("output has a pod that the selector does not match:\n%s%s", out, events)
		}
	})
}

// hasContainer reports whether the runtime has a container with this name.
func (s *Namespace) hasContainer(name string) (bool, error) {
	list, err := s.Host.Runtime.ListContainers(s.t.Context(), &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.container.name": name}},
	})
	return len(list.GetContainers()) > 0, err
}

// TestRequestedChangesSurviveAgentRestart kills the agent right after it accepts a restart or a debug
// container. The kill interrupts some of the container starts.
func TestRequestedChangesSurviveAgentRestart(t *testing.T) {
	forEachNewNode(t, nodeOptions{}, func(t *testing.T, s *Namespace) {
		s.Pod("target", "hostNetwork: true\nterminationGracePeriodSeconds: 3\ncontainers:\n"+
			box("slow", "", "ignore-term", "sleep")+box("b", "", "sleep"))
		s.Running("target")
		const count = 6
		for i := range count {
			name := fmt.Sprint("debug-", i)
			cmd := s.Agent.Command(t.Context(), "debug", "-n", s.ns, "target", "--image", "busybox:1.36", "-c", name,
				"--",
				"sleep", "1000")
			if i == 0 {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("debug: %v: %s", err, out)
				}
			} else { // the request is persisted before the container is created, even without a response
				var command sync.WaitGroup
				command.Go(func() { _ = cmd.Run() })
				t.Cleanup(command.Wait) // the end of t.Context has stopped the command
				if err := hosts.WaitFor(t.Context(), name+" to be created", func() (bool, error) {
					return s.hasContainer(name)
				}); err != nil {
					t.Fatal(err)
				}
			}
			s.KillAndRestartAgent()
			s.Wait("target", "debugged by "+name, func(p *corev1.Pod) bool {
				statuses := p.Status.EphemeralContainerStatuses
				return len(statuses) == i+1 && statuses[i].Name == name && statuses[i].State.Running != nil
			})
		}
		s.Berth("restart", "-n", s.ns, "target/slow") // takes the whole grace period
		s.KillAndRestartAgent()
		p := s.Wait("target", "running with slow restarted", func(p *corev1.Pod) bool {
			return status(p, "slow").RestartCount == 1 && status(p, "slow").Ready && status(p, "b").Ready
		})
		if status(p, "b").RestartCount != 0 {
			t.Error("b was restarted too")
		}
		statuses := p.Status.EphemeralContainerStatuses
		notRunning := func(c corev1.ContainerStatus) bool { return c.State.Running == nil }
		if len(statuses) != count || slices.ContainsFunc(statuses, notRunning) {
			t.Errorf("got ephemeral containers %v, want all running", statuses)
		}
	})
}
