package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestScenario29_PodOverEmptyDirLimitIsEvicted is the emptyDir part of scenario 29. A pod that exceeds
// the sizeLimit of an emptyDir is evicted.
func TestScenario29_PodOverEmptyDirLimitIsEvicted(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		mount := "volumeMounts: [{name: data, mountPath: /data}]"
		text := podYAML("full", "", `
			terminationGracePeriodSeconds: 600
			volumes:
			- {name: data, emptyDir: {sizeLimit: 5Mi}}
			containers:
			`+sh("ignores-term", "", "trap '' TERM; while :; do sleep 0.1; done")+`
			`+box("fills", mount, "fill /data/x 20", "sleep")) // starts last, so both have run at the eviction
		s.Put("full", text)
		s.Pod("fits", "volumes:\n- {name: data, emptyDir: {sizeLimit: 64Mi}}\ncontainers:\n"+
			box("fills", mount, "fill /data/x 20", "sleep"))
		p := s.Phase("full", corev1.PodFailed)
		const message = `Usage of EmptyDir volume "data" exceeds the limit "5Mi". `
		check := func(p *corev1.Pod) {
			t.Helper()
			if p.Status.Reason != "Evicted" || p.Status.Message != message ||
				condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
				t.Errorf("reason %q, message %q: %s", p.Status.Reason, p.Status.Message, brief(p))
			}
			if status(p, "fills").State.Terminated == nil || status(p, "ignores-term").State.Terminated == nil {
				t.Errorf("not all containers are terminated: %s", brief(p))
			}
		}
		check(p)
		s.Event("full", "Evicted: "+strings.TrimSpace(message))
		data := filepath.Join(s.Agent.RootDir, "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", "data")
		s.Wait("full", "without its volume", func(*corev1.Pod) bool {
			_, err := os.Lstat(data)
			return errors.Is(err, os.ErrNotExist)
		})
		s.waitMetric(`kubelet_evictions{eviction_signal="emptydirfs.limit"}`, equals(1))
		s.Running("fits")

		// An agent restart does not change the evicted pod. A new manifest creates a new pod.
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Running("fits")
		afterRestart := s.Phase("full", corev1.PodFailed)
		if check(afterRestart); afterRestart.UID != p.UID {
			t.Errorf("pod after the restart: got UID %s, want %s", afterRestart.UID, p.UID)
		}
		s.Put("full", strings.NewReplacer("5Mi", "50Mi", "PeriodSeconds: 600", "PeriodSeconds: 1").Replace(text))
		if replacement := s.Running("full"); replacement.UID == p.UID {
			t.Error("the evicted pod runs again")
		}
	})
}

// TestEvictExplainShowsRankingWithoutEviction explains the ranking on a node without pressure.
func TestEvictExplainShowsRankingWithoutEviction(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		createPod := func(name, more, resources string, mib int) {
			s.Pod(name, more+"volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
				box("fills", "volumeMounts: [{name: data, mountPath: /data}]"+resources,
					fmt.Sprintf("fill /data/x %d", mib), end,
					"sleep"))
			s.WaitOutput(name, "fills")
		}
		createPod("little", "", "", 2)
		createPod("much", "", "", 6)
		createPod("within", "", ", resources: {requests: {ephemeral-storage: 64Mi}}", 8)
		createPod("system", "priorityClassName: system-node-critical\n", "", 9)
		before := s.metric(`kubelet_evictions{eviction_signal="nodefs.available"}`)
		e, err := s.Client.Eviction(t.Context(), "nodefs.available")
		if err != nil || len(e.Signals) != 1 || !e.Signals[0].Requestable || e.Signals[0].UnderPressure ||
			!strings.HasPrefix(e.Signals[0].Message, "nodefs.available is ") {
			t.Fatalf("%+v, %v", e, err)
		}
		var order []string
		for _, r := range e.Signals[0].Order {
			if r.Namespace == s.ns {
				order = append(order, r.Name)
				if !r.Known || r.Used < 2<<20 || r.ExceedsRequest != (r.Name != "within") ||
					(r.Requested == 64<<20) != (r.Name == "within") {
					t.Errorf("%+v", r)
				}
			}
		}
		if got := strings.Join(order, " "); got != "much little within" {
			t.Errorf("got order %q, want \"much little within\"", got)
		}
		out := s.Berth("evict", "--explain")
		for _, want := range []string{"memory.available is ", "nodefs.available is ", "pid.available is ",
			s.ns + "/system: critical because of its priority 2000001000"} {
			if !strings.Contains(out, want) {
				t.Errorf("output does not contain %q:\n%s", want, out)
			}
		}
		if out, err := s.Try("evict", "--explain", "--signal", "nodefs.full"); err == nil ||
			!strings.Contains(out, `unknown signal "nodefs.full"`) {
			t.Errorf("%v: %s", err, out)
		}
		if after := s.metric(`kubelet_evictions{eviction_signal="nodefs.available"}`); after != before {
			t.Errorf("%v pods were evicted, want 0", after-before)
		}
	})
}

// TestScenario29_ContainerStorageLimits exceeds the ephemeral-storage limits of a container and of a
// pod, with writable layers, logs and volumes.
func TestScenario29_ContainerStorageLimits(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		limit := func(mib int) string {
			return fmt.Sprintf("resources: {limits: {ephemeral-storage: %dMi}}", mib)
		}
		evictions := func(signal string) float64 {
			return max(0, s.metric(`kubelet_evictions{eviction_signal="`+signal+`"}`))
		}
		containers, pods := evictions("ephemeralcontainerfs.limit"), evictions("ephemeralpodfs.limit")
		s.Pod("layer", "containers:\n"+box("writes", limit(5), "fill /x 12", "sleep")+box("other", limit(50), "sleep"))
		s.Pod("logs", "containers:\n"+sh("logs", limit(3),
			"yes 'a line that is long enough to fill the log of a container soon' | head -c 6000000; sleep 3600")+
			box("other", limit(50), "sleep"))
		s.Pod("whole", "volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
			box("writes", limit(12)+", volumeMounts: [{name: data, mountPath: /data}]", "fill /data/x 12", "fill /x 6",
				"sleep")+box("other", limit(3), "sleep"))
		s.Pod("fits", "volumes: [{name: data, emptyDir: {}}]\ncontainers:\n"+
			box("writes", limit(40)+", volumeMounts: [{name: data, mountPath: /data}]", "fill /data/x 12", "fill /x 12",
				end, "sleep"))
		s.WaitOutput("fits", "writes")
		for name, message := range map[string]string{
			"layer": `Container writes exceeded its local ephemeral storage limit "5Mi". `,
			"logs":  `Container logs exceeded its local ephemeral storage limit "3Mi". `,
			"whole": "Pod ephemeral local storage usage exceeds the total limit of containers 15Mi. ",
		} {
			p := s.Phase(name, corev1.PodFailed)
			if p.Status.Reason != "Evicted" || p.Status.Message != message ||
				condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
				t.Errorf("%s: reason %q, message %q: %s", name, p.Status.Reason, p.Status.Message, brief(p))
			}
			s.Event(name, "Evicted: "+strings.TrimSpace(message))
		}
		s.waitMetric(`kubelet_evictions{eviction_signal="ephemeralcontainerfs.limit"}`, equals(containers+2))
		s.waitMetric(`kubelet_evictions{eviction_signal="ephemeralpodfs.limit"}`, equals(pods+1))
		s.Running("fits")
	})
}
