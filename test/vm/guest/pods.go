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
	manifests    = "/etc/berth/pods"
	socket       = "/run/berth/berth.sock"
	pollInterval = 250 * time.Millisecond
	// maxPollInterval limits the delay after a check that waits for a server that starts.
	maxPollInterval = 10 * time.Second
)

// waitTimeout is the time for a pod to reach a state. deadline is that for all checks, counted from the boot of
// the kernel. Later waits fail at once, which lets the machine shut down by itself.
var (
	waitTimeout = 80 * time.Second
	deadline    = time.Now().Add(420*time.Second - uptime())
)

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

// createPods writes the manifests of pods, by name.
func createPods(t *testing.T, pods map[string]string) {
	t.Helper()
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, spec := range pods {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n"+
			"  terminationGracePeriodSeconds: 1\n  automountServiceAccountToken: false\n%s", name, spec)
		file := filepath.Join(manifests, name+".yaml")
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
}

// removePods removes the manifests of pods and waits until the pods are deleted.
func removePods(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(manifests, name+".yaml")); err != nil {
			t.Error(err)
		}
	}
	for _, name := range names {
		waitFor(t, "pod "+name+" to be deleted", func() (bool, string) {
			p, err := find(t.Context(), name)
			return p == nil && err == nil, fmt.Sprint(summary(p), err)
		})
	}
}

// find returns a pod by name, or nil if it does not exist.
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

// waitPod waits until a pod fulfills a condition.
func waitPod(t *testing.T, name, what string, cond func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	waitFor(t, "pod "+name+" to be "+what, func() (bool, string) {
		p, err := find(t.Context(), name)
		if p != nil {
			found = p
		}
		return p != nil && cond(p), fmt.Sprint(summary(found), err)
	})
	return found
}

func waitRunning(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return waitPod(t, name, "Running and Ready", func(p *corev1.Pod) bool {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				return p.Status.Phase == corev1.PodRunning && c.Status == corev1.ConditionTrue
			}
		}
		return false
	})
}

// waitFor calls cond until it returns true. On a timeout it fails with the text that cond returned last.
func waitFor(t *testing.T, what string, cond func() (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), earlier(time.Now().Add(waitTimeout), deadline))
	defer cancel()
	start := time.Now()
	for {
		checkStart := time.Now()
		ok, text := cond()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("timed out after %.0fs waiting for %s: %s", time.Since(start).Seconds(), what, text)
		// A slow check is repeated later, which leaves the CPUs to the agent.
		case <-time.After(min(max(pollInterval, 10*time.Since(checkStart)), maxPollInterval)):
		}
	}
}

func earlier(a, b time.Time) time.Time {
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

// containerID returns the runtime's ID of the container c.
func containerID(p *corev1.Pod) string {
	return strings.TrimPrefix(container(p, "c").ContainerID, "containerd://")
}

func summary(p *corev1.Pod) string {
	if p == nil {
		return "pod does not exist; "
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s; ", p.Status.Phase, p.Status.Reason, p.Status.Message)
	for _, c := range p.Status.ContainerStatuses {
		fmt.Fprintf(&b, "%s: %d restarts, %v, last %v; ", c.Name, c.RestartCount, c.State.String(),
			c.LastTerminationState.String())
	}
	return b.String()
}

// output runs a command that must succeed and returns its trimmed standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), earlier(time.Now().Add(waitTimeout), deadline))
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

// checkContains reports an error for each part that is missing in a text.
func checkContains(t *testing.T, where, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: no %q in\n%s", where, part, text)
		}
	}
}
