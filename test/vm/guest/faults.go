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

// light is a pod that is probed, and that ends only when it is killed.
const light = "  hostNetwork: true\n  containers:\n  - name: c\n    image: busybox:1.36\n    command: [sh, -c, \"trap '' TERM; while true; do sleep 1; done\"]\n" +
	"    readinessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1, timeoutSeconds: 20}\n    livenessProbe: {exec: {command: [\"true\"]}, periodSeconds: 1, timeoutSeconds: 20}\n"

// clock is stepped forth and back: no pod is restarted or loses its readiness, a pod
// that ends meanwhile has no longer or shorter for it, and new ones run.
func clock(t *testing.T) {
	put(t, map[string]string{"timed": light})
	timed := running(t, "timed")
	for i, by := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		name := fmt.Sprint("ends", i)
		put(t, map[string]string{name: light})
		running(t, name)
		if err := os.Remove(filepath.Join(manifests, name+".yaml")); err != nil {
			t.Fatal(err)
		}
		at := unix.NsecToTimeval(time.Now().Add(by).UnixNano())
		if err := unix.Settimeofday(&at); err != nil {
			t.Fatal(err)
		}
		wait(t, name+" to be gone", func() (bool, string) {
			p, err := find(t.Context(), name)
			return p == nil && err == nil, fmt.Sprint(brief(p), err)
		})
		name = fmt.Sprint("begins", i)
		put(t, map[string]string{name: light})
		p := running(t, name)
		// Round takes the monotonic reading away, which knows of no step.
		if age := time.Now().Round(0).Sub(container(p, "c").State.Running.StartedAt.Time); age < -time.Second || age > bound {
			t.Errorf("after a step of %s: %s has run for %s", by, name, age)
		}
		drop(t, name)
		if p := running(t, "timed"); id(p) != id(timed) || container(p, "c").RestartCount != 0 || readySince(p) != readySince(timed) {
			t.Errorf("after a step of %s: it was %s, ready since %s, and is %s, ready since %s", by, brief(timed), readySince(timed), brief(p), readySince(p))
		}
	}
	drop(t, "timed")
}

// readySince is when a pod became ready.
func readySince(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.UTC().Format(time.RFC3339)
		}
	}
	return "never"
}

// watches has no inotify left for an agent that begins: files are found by looking
// again, and logs too.
func watches(t *testing.T) {
	const most = "/proc/sys/fs/inotify/max_user_instances"
	put(t, map[string]string{"watched": light})
	before := running(t, "watched")
	was := readFile(t, most)
	if err := os.WriteFile(most, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(most, []byte(was), 0); err != nil {
			t.Error(err)
		}
	}()
	output(t, "systemctl", "restart", "berth")
	active(t)
	put(t, map[string]string{"found": light})
	running(t, "found")
	drop(t, "found")
	contains(t, "the journal", output(t, "journalctl", "-b", "-u", "berth", "-o", "cat", "--no-pager"), "log file watch unavailable")
	if p := running(t, "watched"); id(p) != id(before) || container(p, "c").RestartCount != 0 {
		t.Errorf("it was %s and is %s", brief(before), brief(p))
	}
	drop(t, "watched")
}
