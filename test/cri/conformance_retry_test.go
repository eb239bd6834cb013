package cri_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/cri/crifake"
)

func testRepeat(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	if again := h.sandbox(t, pod); again.ID != s.ID || !again.Ready {
		t.Errorf("repeated RunSandbox: %+v, was %+v", again, s)
	}
	c := h.container(t, pod, "a", h.containerConfig(pod, s, 0))
	if again := h.container(t, pod, "a", h.containerConfig(pod, s, 0)); again.ID != c.ID ||
		again.State != plan.Running {
		t.Errorf("repeated StartContainer: %+v, was %+v", again, c)
	}
	// A stopped sandbox keeps its name until it is replaced.
	if err := h.client.StopSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if again := h.sandbox(t, pod); again.ID == s.ID || !again.Ready {
		t.Errorf("replacement of a stopped sandbox: %+v, was %+v", again, s)
	}
	if observed, err := h.client.Pod(t.Context(), pod.UID); err != nil || len(observed.Sandboxes) != 1 ||
		len(observed.Containers) != 0 {
		t.Errorf("remaining objects: %+v %v", observed, err)
	}
}

// serveFake serves a fake runtime on a socket until the end of the test.
func serveFake(t *testing.T, fake *crifake.Runtime) *host {
	t.Helper()
	t.Cleanup(fake.Close)
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stop := fake.Serve(l)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return &host{endpoint: "unix://" + socket, dir: t.TempDir(), cgroup: "/test"}
}

// TestRunSandboxReplacesSandboxListedAsReady stops a sandbox that the next list still shows as ready, as
// containerd 2.4 does on a busy machine.
func TestRunSandboxReplacesSandboxListedAsReady(t *testing.T) {
	t.Parallel()
	h := serveFake(t, crifake.New(crifake.Options{}))
	var stale atomic.Bool
	h.client = h.dial(t, func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if list, ok := reply.(*runtimeapi.ListPodSandboxResponse); ok && stale.Swap(false) {
			for _, s := range list.Items {
				s.State = runtimeapi.PodSandboxState_SANDBOX_READY
			}
		}
		return err
	})
	pod := h.pod(t, "sleep")
	first := h.sandbox(t, pod)
	if err := h.client.StopSandbox(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	stale.Store(true)
	if again := h.sandbox(t, pod); again.ID == first.ID || !again.Ready {
		t.Errorf("replacement of a stopped sandbox: %+v, was %+v", again, first)
	}
}

func testInterrupted(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	for after := time.Millisecond; after < 300*time.Millisecond; after *= 3 {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		if s, err := h.client.RunSandbox(ctx, pod, h.sandboxConfig(pod, 0)); err == nil {
			t.Logf("sandbox %s after %v", s.ID, after)
		} else if k := plan.KindOf(err); k != plan.Timeout {
			t.Errorf("interrupted after %v: kind %v: %v", after, k, err)
		}
		cancel()
	}
	s := h.sandbox(t, pod)
	for after := time.Millisecond; after < 300*time.Millisecond; after *= 3 {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := h.client.StartContainer(ctx, pod, "a", h.containerConfig(pod, s, 0))
		cancel()
		if err == nil {
			break
		}
		if k := plan.KindOf(err); k != plan.Timeout && reasonOf(err) != "RunContainerError" {
			t.Errorf("interrupted after %v: kind %v: %v", after, k, err)
		}
	}
	c, err := h.client.StartContainer(t.Context(), pod, "a", h.containerConfig(pod, s, 0))
	if c.ID == "" {
		t.Fatalf("interrupted container: %v", err)
	}
	eventually(t, "one sandbox and one container remain", func() bool {
		observed, err := h.client.Pod(t.Context(), pod.UID)
		return err == nil && len(observed.Sandboxes) == 1 && observed.Sandboxes[0].ID == s.ID &&
			len(observed.Containers) == 1 && observed.Containers[0].ID == c.ID
	})
}

func testExistingContainer(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	s := h.sandbox(t, pod)
	containerConfig := h.containerConfig(pod, s, 1)
	node := criconfig.Node{Name: "node"}
	config, err := criconfig.Container(node, pod, &pod.Spec.Containers[0], containerConfig)
	if err != nil {
		t.Fatal(err)
	}
	sandbox, err := criconfig.Sandbox(node, pod, h.sandboxConfig(pod, 0))
	if err != nil {
		t.Fatal(err)
	}
	left, err := h.raw.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: s.ID,
		Config: config, SandboxConfig: sandbox})
	if err != nil {
		t.Fatal(err)
	}
	observed, err := h.client.Container(t.Context(), left.ContainerId)
	if err != nil || observed.State != plan.Created {
		t.Errorf("before: %+v %v", observed, err)
	}
	c := h.container(t, pod, "a", containerConfig)
	if c.ID == left.ContainerId {
		t.Error("the existing container was started although its configuration may be outdated")
	}
	after, err := h.client.Pod(t.Context(), pod.UID)
	if err != nil || len(after.Containers) != 1 || after.Containers[0].ID != c.ID {
		t.Errorf("after: %+v %v", after.Containers, err)
	}
}

func testFailedEarlier(t *testing.T, h *host) {
	pod := h.pod(t, "sleep")
	pod.Spec.Containers[0].Command = []string{"/no/such/command"}
	s := h.sandbox(t, pod)
	first, err := h.client.StartContainer(t.Context(), pod, "a", h.containerConfig(pod, s, 0))
	if err == nil {
		t.Fatalf("started: %+v", first)
	}
	again, err := h.client.StartContainer(t.Context(), pod, "a", h.containerConfig(pod, s, 0))
	if again.ID != first.ID || again.State != plan.Exited || reasonOf(err) != "RunContainerError" ||
		!strings.Contains(err.Error(), "/no/such/command") {
		t.Errorf("again: %+v %v, was %+v", again, err, first)
	}
}
