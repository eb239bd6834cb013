package cri_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/test/images"
)

func testContainer(t *testing.T, h *host) {
	pod := h.pod(t, "print hello , sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 2))
	if c.State != plan.Running || c.Attempt != 2 || c.SandboxID != s.ID || c.Name != "a" ||
		c.Image != images.TestboxRef ||
		c.SpecHash == "" || c.StartedAt.IsZero() || c.LogPath != filepath.Join(h.logs(pod), "a", "2.log") {
		t.Errorf("started: %+v", c)
	}
	observed, err := h.client.Container(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if observed.State != plan.Running || observed.SandboxID != s.ID || observed.SpecHash != c.SpecHash ||
		observed.Attempt != 2 || observed.Image != c.Image || observed.LogPath != c.LogPath ||
		observed.ImageID == "" || observed.StartedAt.IsZero() || !observed.FinishedAt.IsZero() {
		t.Errorf("running: %+v", observed)
	}
	links := h.links(t, c.ID)
	if len(links) != 1 || filepath.Base(links[0]) != pod.Name+"_default_a-"+c.ID+".log" {
		t.Fatalf("log links: %q", links)
	}
	eventually(t, "the log is readable through its link", func() bool {
		text, err := os.ReadFile(links[0])
		return err == nil && strings.HasSuffix(string(text), " stdout F hello\n")
	})
	exited, err := h.client.StopContainer(t.Context(), c.ID, 20*time.Second)
	if err != nil || exited.State != plan.Exited || exited.ExitCode != 143 || exited.Reason != "Error" ||
		exited.FinishedAt.Before(exited.StartedAt) {
		t.Errorf("stopped: %+v %v", exited, err)
	}
	for range 2 { // a missing object is not an error: R3 in package cri
		if err := h.client.RemoveContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		if exited, err := h.client.StopContainer(t.Context(), c.ID, time.Second); err != nil || exited.ID != "" {
			t.Errorf("stop of a removed container: %+v %v", exited, err)
		}
	}
	if links := h.links(t, c.ID); len(links) != 0 {
		t.Errorf("remaining log links: %q", links)
	}
	if _, err := h.client.Container(t.Context(), c.ID); plan.KindOf(err) != plan.NotFound {
		t.Errorf("status of a removed container: %v", err)
	}
}

func testExit(t *testing.T, h *host) {
	pod := h.pod(t, "exit 3", "exit")
	s := h.sandbox(t, pod)
	failed := h.waitExited(t, h.container(t, pod, "a", h.containerConfig(pod, s, 0)).ID)
	if failed.ExitCode != 3 || failed.Reason != "Error" || failed.StartedAt.IsZero() ||
		failed.FinishedAt.Before(failed.StartedAt) {
		t.Errorf("exit 3: %+v", failed)
	}
	succeeded := h.waitExited(t, h.container(t, pod, "b", h.containerConfig(pod, s, 0)).ID)
	if succeeded.ExitCode != 0 || succeeded.Reason != "Completed" {
		t.Errorf("exit 0: %+v", succeeded)
	}
	// The links of containers that are removed with the sandbox are removed too.
	if err := h.client.RemoveSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if links := append(h.links(t, failed.ID), h.links(t, succeeded.ID)...); len(links) != 0 {
		t.Errorf("remaining log links: %q", links)
	}
}

func testKill(t *testing.T, h *host) {
	pod := h.pod(t, "ignore-term , print ready , sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	h.ready(t, c)
	startTime := time.Now()
	exited, err := h.client.StopContainer(t.Context(), c.ID, 500*time.Millisecond) // rounded up
	if err != nil || exited.State != plan.Exited || exited.ExitCode != 137 {
		t.Errorf("killed: %+v %v", exited, err)
	}
	if took := time.Since(startTime); took < 900*time.Millisecond {
		t.Errorf("killed after %v, before the end of its grace period of 1 s", took)
	}
}

// ready waits until the container has printed "ready".
func (h *host) ready(t *testing.T, c plan.Container) {
	t.Helper()
	eventually(t, "container is ready", func() bool {
		text, err := os.ReadFile(c.LogPath)
		return err == nil && strings.Contains(string(text), "ready")
	})
}

func testMessage(t *testing.T, h *host) {
	pod := h.pod(t,
		"write /dev/termination-log farewell , exit 1",
		"print first , print last , exit 1",
		"print last , exit 0",
		"warn first , write /dev/termination-log farewell , exit 1")
	for i := range pod.Spec.Containers[1:] {
		pod.Spec.Containers[i+1].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	s := h.sandbox(t, pod)
	for name, want := range map[string]string{"a": "farewell", "b": "first\nlast\n", "c": "", "d": "farewell"} {
		file := filepath.Join(h.dir, string(pod.UID)+name)
		if err := os.WriteFile(file, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		containerConfig := h.containerConfig(pod, s, 0)
		containerConfig.Mounts = []plan.Mount{{HostPath: file, ContainerPath: "/dev/termination-log"}}
		if exited := h.waitExited(t, h.container(t, pod, name, containerConfig).ID); exited.Message != want {
			t.Errorf("message of container %s: %q, want %q", name, exited.Message, want)
		}
	}
}

func testMissing(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	containerConfig := h.containerConfig(pod, s, 0)
	containerConfig.Image.ID = "sha256:" + strings.Repeat("0", 64)
	c, err := h.client.StartContainer(t.Context(), pod, "a", containerConfig)
	if plan.KindOf(err) != plan.ImageNotFound || reasonOf(err) != "CreateContainerError" || c.ID != "" {
		t.Errorf("without an image: %+v, kind %v, reason %q: %v", c, plan.KindOf(err), reasonOf(err), err)
	}
	if strings.Contains(err.Error(), "rpc error") {
		t.Errorf("the error mentions RPCs: %v", err)
	}
	containerConfig = h.containerConfig(pod, plan.Sandbox{ID: strings.Repeat("0", 64)}, 0)
	c, err = h.client.StartContainer(t.Context(), pod, "a", containerConfig)
	if plan.KindOf(err) != plan.NotFound || c.ID != "" {
		t.Errorf("without a sandbox: %+v, kind %v: %v", c, plan.KindOf(err), err)
	}
	// Neither has reserved the name.
	h.container(t, pod, "a", h.containerConfig(pod, s, 0))
}

func testNoCommand(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	pod.Spec.Containers[0].Command = []string{"/no/such/command"}
	s := h.sandbox(t, pod)
	c, err := h.client.StartContainer(t.Context(), pod, "a", h.containerConfig(pod, s, 0))
	if err == nil || reasonOf(err) != "RunContainerError" || !strings.Contains(err.Error(), "/no/such/command") {
		t.Fatalf("start: reason %q: %v", reasonOf(err), err)
	}
	if c.ID == "" || c.State != plan.Exited || c.ExitCode != 128 || c.Reason != "StartError" || !c.StartedAt.IsZero() {
		t.Errorf("remaining container: %+v", c)
	}
	if err := h.client.RemoveContainer(t.Context(), c.ID); err != nil {
		t.Error(err)
	}
}
