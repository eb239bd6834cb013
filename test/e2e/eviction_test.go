package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestAPodThatOverfillsAnEmptyDirIsEvicted(t *testing.T) {
	alone(t, nodeOptions{CNI: true}, func(t *testing.T, s *Space) {
		mount := "volumeMounts: [{name: data, mountPath: /data}]"
		text := podYAML("full", "", `
			terminationGracePeriodSeconds: 600
			volumes:
			- {name: data, emptyDir: {sizeLimit: 5Mi}}
			containers:
			`+box("fills", mount, "fill /data/x 20", "sleep")+`
			`+sh("deaf", "", "trap '' TERM; while :; do sleep 0.1; done"))
		s.Put("full", text)
		s.Pod("fits", "volumes:\n- {name: data, emptyDir: {sizeLimit: 64Mi}}\ncontainers:\n"+box("fills", mount, "fill /data/x 20", "sleep"))
		p := s.Phase("full", corev1.PodFailed)
		const message = `Usage of EmptyDir volume "data" exceeds the limit "5Mi". `
		check := func(p *corev1.Pod) {
			t.Helper()
			if p.Status.Reason != "Evicted" || p.Status.Message != message || condition(p, corev1.DisruptionTarget) != corev1.ConditionTrue {
				t.Errorf("reason %q, message %q: %s", p.Status.Reason, p.Status.Message, brief(p))
			}
			if status(p, "fills").State.Terminated == nil || status(p, "deaf").State.Terminated == nil {
				t.Errorf("not all has ended: %s", brief(p))
			}
		}
		check(p)
		s.Event("full", "Evicted: "+strings.TrimSpace(message))
		data := filepath.Join(s.Agent.RootDir, "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir", "data")
		s.Wait("full", "without its volume", func(*corev1.Pod) bool { _, err := os.Lstat(data); return errors.Is(err, os.ErrNotExist) })
		if n := s.metric(`kubelet_evictions{eviction_signal="emptydirfs.limit"}`); n != 1 {
			t.Errorf("%v evictions are counted", n)
		}
		s.Running("fits")

		// A new agent leaves it as it is, and another manifest makes another pod.
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Running("fits")
		again := s.Phase("full", corev1.PodFailed)
		if check(again); again.UID != p.UID {
			t.Errorf("another pod: %s, was %s", again.UID, p.UID)
		}
		s.Put("full", strings.NewReplacer("5Mi", "50Mi", "PeriodSeconds: 600", "PeriodSeconds: 1").Replace(text))
		if now := s.Running("full"); now.UID == p.UID {
			t.Error("the pod that was evicted runs again")
		}
	})
}
