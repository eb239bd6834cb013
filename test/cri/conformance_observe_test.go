package cri_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri"
)

func testForeign(t *testing.T, h *host) {
	resp, err := h.raw.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "foreign", Namespace: "default", Uid: "uid-foreign"},
		Labels: map[string]string{"io.kubernetes.pod.name": "foreign", "io.kubernetes.pod.namespace": "default",
			"io.kubernetes.pod.uid": "uid-foreign"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: h.cgroup,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := h.raw.RemovePodSandbox(t.Context(),
			&runtimeapi.RemovePodSandboxRequest{PodSandboxId: resp.PodSandboxId}); err != nil {
			t.Error(err)
		}
	}()
	if observed, err := h.client.Pod(t.Context(), "uid-foreign"); err != nil || len(observed.Sandboxes) != 0 {
		t.Errorf("foreign pod: %+v %v", observed, err)
	}
	all, err := h.client.Pods(t.Context())
	if _, ok := all["uid-foreign"]; err != nil || ok {
		t.Errorf("foreign pod is listed: %v %v", ok, err)
	}
}

func testPods(t *testing.T, h *host) {
	pod := h.pod(t, "sleep", "exit")
	s := h.sandbox(t, pod)
	a := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	b := h.container(t, pod, "b", h.containerConfig(pod, s, 1))
	h.waitExited(t, b.ID)
	all, err := h.dial(t).Pods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := all[pod.UID]
	if m.Name != pod.Name || m.Namespace != pod.Namespace || !m.HostNetwork || len(m.Sandboxes) != 1 ||
		!m.Sandboxes[0].Ready || len(m.Containers) != 2 {
		t.Fatalf("found: %+v", m)
	}
	if m.Containers[0].ID != b.ID || m.Containers[0].State != plan.Exited || m.Containers[1].ID != a.ID ||
		m.Containers[1].State != plan.Running ||
		m.Containers[1].SandboxID != s.ID || m.Containers[1].SpecHash != a.SpecHash {
		t.Errorf("containers: %+v", m.Containers)
	}
	back := m.Restore()
	if back == nil || back.UID != pod.UID || len(back.Spec.Containers) != 2 ||
		*back.Spec.TerminationGracePeriodSeconds != 7 {
		t.Errorf("restored: %+v", back)
	}
}

func testExec(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	out, errs, code, err := h.client.ExecSync(t.Context(), c.ID,
		strings.Fields("/bin/testbox print out , warn err , exit 5"), 20*time.Second)
	if err != nil || string(out) != "out\n" || string(errs) != "err\n" || code != 5 {
		t.Errorf("exec: %q %q %d %v", out, errs, code, err)
	}
	out, _, code, err = h.client.ExecSync(t.Context(), c.ID, strings.Fields("/bin/testbox lines 20000"), 0)
	if err != nil || code != 0 || len(out) != cri.MaxExecOutput || !strings.HasPrefix(string(out), "line 1\n") {
		t.Errorf("large output: %d bytes, %d %v", len(out), code, err)
	}
	_, _, _, err = h.client.ExecSync(t.Context(), c.ID, strings.Fields("/bin/testbox sleep 60s"), time.Second)
	if plan.KindOf(err) != plan.Timeout {
		t.Errorf("exec that exceeds its timeout: kind %v: %v", plan.KindOf(err), err)
	}
	if _, _, _, err := h.client.ExecSync(t.Context(), strings.Repeat("0", 64), []string{"/bin/testbox"},
		20*time.Second); plan.KindOf(err) != plan.NotFound {
		t.Errorf("exec in a missing container: %v", err)
	}
}

func testStreams(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	url, err := h.client.ExecURL(t.Context(), c.ID, []string{"/bin/testbox"}, cri.Streams{Stdout: true})
	if err != nil || !strings.HasPrefix(url, "http") {
		t.Errorf("exec: %q %v", url, err)
	}
	url, err = h.client.AttachURL(t.Context(), c.ID, cri.Streams{Stdout: true})
	if err != nil || !strings.HasPrefix(url, "http") {
		t.Errorf("attach: %q %v", url, err)
	}
	if _, err := h.client.ExecURL(t.Context(), strings.Repeat("0", 64), []string{"x"},
		cri.Streams{Stdout: true}); plan.KindOf(err) != plan.NotFound {
		t.Errorf("exec in a missing container: %v", err)
	}
}

// watchEvents runs a source of events. It returns the events of one pod, and a channel that receives a value
// for each resync.
func watchEvents(t *testing.T, uid types.UID,
	source func(context.Context, func(cri.Event)) error) (events chan cri.Event, synced chan bool) {
	ctx, cancel := context.WithCancel(t.Context())
	events, synced = make(chan cri.Event, 1000), make(chan bool, 1000)
	done := make(chan error, 1)
	go func() {
		done <- source(ctx, func(e cri.Event) {
			switch e.UID {
			case "":
				synced <- true
			case uid:
				events <- e
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("event stream failed: %v", err)
		}
	})
	return events, synced
}

// waitForEvent waits for a matching event and returns it.
func waitForEvent(t *testing.T, events <-chan cri.Event, what string, matches func(cri.Event) bool) cri.Event {
	t.Helper()
	limit := time.After(waitTimeout)
	for {
		select {
		case e := <-events:
			if matches(e) {
				return e
			}
		case <-limit:
			t.Fatalf("no event before the timeout: %s", what)
		}
	}
}

func testEvents(t *testing.T, h *host) {
	if h.old {
		if err := h.client.Events(t.Context(), func(cri.Event) {}); plan.KindOf(err) != plan.Unsupported {
			t.Errorf("events of an old runtime: %v", err)
		}
		return
	}
	pod := h.pod(t, "exit 3")
	events, synced := watchEvents(t, pod.UID, h.client.Events)
	<-synced
	s := h.sandbox(t, pod)
	e := waitForEvent(t, events, "sandbox is ready", func(e cri.Event) bool {
		return e.Kind == cri.Started &&
			e.Sandbox != nil && e.Sandbox.Ready
	})
	if e.Hint || e.Sandbox.ID != s.ID || time.Since(e.At) > time.Minute {
		t.Errorf("start of the sandbox: %+v", e)
	}
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	e = waitForEvent(t, events, "container has exited", func(e cri.Event) bool {
		return e.Kind == cri.Stopped && len(e.Containers) == 1 && e.Containers[0].State == plan.Exited
	})
	if e.Containers[0].ID != c.ID || e.Containers[0].ExitCode != 3 || e.Containers[0].SandboxID != s.ID ||
		!e.Sandbox.Ready {
		t.Errorf("end of the container: %+v", e)
	}
	if err := h.client.RemoveContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	waitForEvent(t, events, "container is deleted", func(e cri.Event) bool {
		return e.Kind == cri.Deleted &&
			len(e.Containers) == 0
	})
}

func testPoll(t *testing.T, h *host) {
	pod := h.pod(t, "print ready , sleep")
	events, synced := watchEvents(t, pod.UID, func(ctx context.Context, report func(cri.Event)) error {
		return h.client.Poll(ctx, 20*time.Millisecond, report)
	})
	<-synced
	changed := func(e cri.Event) bool { return e.Hint && e.Kind == cri.Changed }
	s := h.sandbox(t, pod)
	waitForEvent(t, events, "sandbox", changed)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	waitForEvent(t, events, "container", changed)
	h.ready(t, c) // the init process ignores signals until it has a handler
	if _, err := h.client.StopContainer(t.Context(), c.ID, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	waitForEvent(t, events, "end of the container", changed)
	h.removePod(t, pod.UID)
	waitForEvent(t, events, "pod is deleted", func(e cri.Event) bool { return e.Kind == cri.Deleted })
}

func testUpdate(t *testing.T, h *host) {
	pod := h.pod(t, "print ready , sleep")
	s := h.sandbox(t, pod)
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	if err := h.client.UpdateResources(t.Context(), c.ID,
		&runtimeapi.LinuxContainerResources{CpuShares: 512}); err != nil {
		t.Error(err)
	}
	h.ready(t, c)
	for _, row := range []struct {
		memory  string
		refused bool
	}{{"64Mi", false}, {"64Mi", false}, {"4Ki", true}, {"96Mi", false}} {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(
			row.memory)}
		if err := h.client.ResizeContainer(t.Context(), pod, "a", c.ID); row.refused != (err != nil &&
			strings.Contains(err.Error(), "below current usage")) {
			t.Errorf("memory limit of %s: %v", row.memory, err)
		}
	}
	if err := os.Rename(c.LogPath, c.LogPath+".1"); err != nil {
		t.Fatal(err)
	}
	if err := h.client.ReopenLog(t.Context(), c.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.LogPath); err != nil {
		t.Errorf("the log was not reopened: %v", err)
	}
}
