package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// probedPod is the spec of a pod with probes that ignores SIGTERM. Each run of a command takes a second of
// CPU time on the emulated machine.
const probedPod = "  hostNetwork: true\n  containers:\n  - name: c\n    image: busybox:1.36\n    command: [sh, -c, " +
	"\"trap '' TERM; while true; do sleep 1; done\"]\n" +
	"    readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 3, timeoutSeconds: 20}\n    livenessProbe: " +
	"{exec: {command: [\"true\"]}, periodSeconds: 3, timeoutSeconds: 20}\n"

// clockSteps steps the clock forward and back. No pod is restarted or loses its readiness, a
// terminating pod keeps its grace period, and new pods run.
func clockSteps(t *testing.T) {
	createPods(t, map[string]string{"timed": probedPod})
	timed := waitRunning(t, "timed")
	for i, step := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		name := fmt.Sprint("ends", i)
		createPods(t, map[string]string{name: probedPod})
		waitRunning(t, name)
		if err := os.Remove(filepath.Join(manifests, name+".yaml")); err != nil {
			t.Fatal(err)
		}
		at := unix.NsecToTimeval(time.Now().Add(step).UnixNano())
		if err := unix.Settimeofday(&at); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "pod "+name+" to be deleted", func() (bool, string) {
			p, err := find(t.Context(), name)
			return p == nil && err == nil, fmt.Sprint(summary(p), err)
		})
		name = fmt.Sprint("starts", i)
		createPods(t, map[string]string{name: probedPod})
		p := waitRunning(t, name)
		// Round strips the monotonic clock reading, which does not include the step.
		if age := time.Now().Round(0).Sub(container(p, "c").State.Running.StartedAt.Time); age < -time.Second ||
			age > waitTimeout {
			t.Errorf("after a step of %s: pod %s has age %s", step, name, age)
		}
		removePods(t, name)
		if p := waitRunning(t, "timed"); containerID(p) != containerID(timed) || container(p, "c").RestartCount != 0 ||
			readySince(p) != readySince(timed) {
			t.Errorf("after a step of %s: got %s, ready since %s; want %s, ready since %s",
				step, summary(p), readySince(p), summary(timed), readySince(timed))
		}
	}
	removePods(t, "timed")
}

// readySince returns the transition time of a pod's Ready condition.
func readySince(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.UTC().Format(time.RFC3339)
		}
	}
	return "never"
}

// withoutInotify restarts the agent while no inotify instance is available: it polls manifests and log
// files instead.
func withoutInotify(t *testing.T) {
	const maxInstances = "/proc/sys/fs/inotify/max_user_instances"
	createPods(t, map[string]string{"watched": probedPod})
	before := waitRunning(t, "watched")
	limit := readFile(t, maxInstances)
	if err := os.WriteFile(maxInstances, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(maxInstances, []byte(limit), 0); err != nil {
			t.Error(err)
		}
	}()
	output(t, "systemctl", "restart", "berth")
	waitActive(t)
	createPods(t, map[string]string{"found": probedPod})
	waitRunning(t, "found")
	removePods(t, "found")
	checkContains(t, "the journal", output(t, "journalctl", "-b", "-u", "berth", "-o", "cat", "--no-pager"),
		"log file watch unavailable")
	if p := waitRunning(t, "watched"); containerID(p) != containerID(before) || container(p, "c").RestartCount != 0 {
		t.Errorf("pod watched was restarted: got %s, before %s", summary(p), summary(before))
	}
	removePods(t, "watched")
}
