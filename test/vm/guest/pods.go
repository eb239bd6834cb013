package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

const (
	manifests = "/etc/berth/pods"
	socket    = "/run/berth/berth.sock"
	bound     = 80 * time.Second // for a pod to be as wanted
	every     = 250 * time.Millisecond
)

// last is when all checks end, 420 seconds after the kernel began: what was not
// seen by then fails at once, so that the machine ends by itself.
var last = time.Now().Add(420*time.Second - uptime())

func uptime() time.Duration {
	var seconds float64
	text, err := os.ReadFile("/proc/uptime")
	if err == nil {
		_, err = fmt.Sscan(string(text), &seconds)
	}
	if err != nil {
		fmt.Println(err)
	}
	return time.Duration(seconds * float64(time.Second))
}

// put writes pods' manifests, each by its name, all before the first is seen.
func put(t *testing.T, pods map[string]string) {
	t.Helper()
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, spec := range pods {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  terminationGracePeriodSeconds: 1\n  automountServiceAccountToken: false\n%s", name, spec)
		file := filepath.Join(manifests, name+".yaml")
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
}

// drop takes pods' manifests away and waits until the pods are gone.
func drop(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(manifests, name+".yaml")); err != nil {
			t.Error(err)
		}
	}
	for _, name := range names {
		wait(t, "pod "+name+" to be gone", func() (bool, string) {
			p, err := find(t.Context(), name)
			return p == nil && err == nil, fmt.Sprint(brief(p), err)
		})
	}
}

// find returns the pod of a name; nil: there is none.
func find(ctx context.Context, name string) (*corev1.Pod, error) {
	c, err := nodeapi.Dial(socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := c.Pods(ctx, nodeapi.PodsRequest{Namespace: "default"})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// pod waits until a pod is as wanted.
func pod(t *testing.T, name, what string, cond func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	wait(t, "pod "+name+" to be "+what, func() (bool, string) {
		p, err := find(t.Context(), name)
		if p != nil {
			found = p
		}
		return p != nil && cond(p), fmt.Sprint(brief(found), err)
	})
	return found
}

func running(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return pod(t, name, "Running and Ready", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				return p.Status.Phase == corev1.PodRunning && c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// wait asks cond until it says yes; the text says how things are instead.
func wait(t *testing.T, what string, cond func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), soonest(time.Now().Add(bound), last))
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, text := cond()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waited %.0fs for %s: %s", time.Since(began).Seconds(), what, text)
		case <-tick.C:
		}
	}
}

func soonest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func container(p *corev1.Pod, name string) corev1.ContainerStatus {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == name {
			return c
		}
	}
	return corev1.ContainerStatus{}
}

// id is that of the pod's container c, as the runtime writes it.
func id(p *corev1.Pod) string {
	return strings.TrimPrefix(container(p, "c").ContainerID, "containerd://")
}

func brief(p *corev1.Pod) string {
	if p == nil {
		return "it is not there; "
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s; ", p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, c := range p.Status.ContainerStatuses {
		fmt.Fprintf(&b, "%s: %d restarts, %v, last %v; ", c.Name, c.RestartCount, c.State.String(), c.LastTerminationState.String())
	}
	return b.String()
}

// output runs a command that must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), soonest(time.Now().Add(bound), last))
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			out = append(out, exit.Stderr...)
		}
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// contains reports what of the parts is missing in a text.
func contains(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: no %q in\n%s", where, part, text)
		}
	}
}
