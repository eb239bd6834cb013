package cri_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri"
	"berth/cri/crifake"
)

// withFake runs a test with a fake runtime in the virtual time of a synctest bubble.
func withFake(t *testing.T, o crifake.Options, test func(t *testing.T, fake *crifake.Runtime, c *cri.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fake := crifake.New(o)
		defer fake.Close()
		fake.AddImage("x:1")
		c, err := cri.Dial(t.Context(), cri.Options{Conn: fake.Conn()})
		if err != nil {
			t.Fatal(err)
		}
		test(t, fake, c)
	})
}

func newPod() *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "web", "default", "uid-web"
	pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "x:1"}}
	return pod
}

func startPod(t *testing.T, c *cri.Client, pod *corev1.Pod) (plan.Sandbox, plan.Container) {
	t.Helper()
	s, err := c.RunSandbox(t.Context(), pod, plan.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.StartContainer(t.Context(), pod, "a", containerConfigIn(s))
	if err != nil {
		t.Fatal(err)
	}
	return s, a
}

func containerConfigIn(s plan.Sandbox) plan.ContainerConfig {
	return plan.ContainerConfig{Sandbox: s, Image: plan.Image{ID: "x:1"}}
}

// TestResizeChecksOnlyLoweredMemoryLimit: a container that is near its limit
// can get more CPU or memory.
func TestResizeChecksOnlyLoweredMemoryLimit(t *testing.T) {
	for _, old := range []bool{false, true} {
		withFake(t, crifake.Options{Containerd16: old}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
			pod := newPod()
			limits := func(memory, cpu string) {
				pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
					corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourceCPU: resource.MustParse(cpu)}
			}
			limits("64Mi", "1")
			_, a := startPod(t, c, pod)
			for _, row := range []struct {
				memory, cpu string
				used        uint64
				refused     bool
			}{
				{"64Mi", "2", 64 << 20, false},
				{"48Mi", "2", 64 << 20, true},
				{"48Mi", "2", 32 << 20, false},
				{"48Mi", "1", 48 << 20, false},
				{"56Mi", "1", 60 << 20, false}, // the usage has grown
				{"52Mi", "1", 52 << 20, true},
			} {
				limits(row.memory, row.cpu)
				fake.SetMemoryUsage(a.ID, row.used)
				if err := c.ResizeContainer(t.Context(), pod, "a", a.ID); (err != nil) != row.refused {
					t.Errorf("old %v: %s with %d bytes in use: %v", old, row.memory, row.used, err)
				}
			}
			pod.Spec.Containers[0].Resources.Limits = nil // remove the limit and set it again
			if err := c.UpdateResources(t.Context(), a.ID,
				&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: -1}); err != nil {
				t.Fatal(err)
			}
			limits("64Mi", "1")
			fake.SetMemoryUsage(a.ID, 64<<20)
			if err := c.ResizeContainer(t.Context(), pod, "a", a.ID); err == nil {
				t.Errorf("old %v: a new limit below the usage was accepted", old)
			}
		})
	}
}

func TestForeignObjectsAreIgnored(t *testing.T) { // R1
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		raw := runtimeapi.NewRuntimeServiceClient(fake.Conn())
		events, synced := watchEvents(t, "uid-web", c.Events)
		<-synced
		// A pod of the kubelet: the same labels except the owner label.
		config := &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "uid-web"},
			Labels: map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "default",
				"io.kubernetes.pod.uid": "uid-web"},
		}
		s, err := raw.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
		if err != nil {
			t.Fatal(err)
		}
		a, err := raw.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
			PodSandboxId: s.PodSandboxId, SandboxConfig: config,
			Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "a"},
				Labels: config.Labels,
				Image:  &runtimeapi.ImageSpec{Image: "x:1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if observed, err := c.Pod(t.Context(), "uid-web"); err != nil ||
			len(observed.Sandboxes)+len(observed.Containers) != 0 {
			t.Errorf("pod: %+v %v", observed, err)
		}
		if all, err := c.Pods(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("pods: %+v %v", all, err)
		}
		if observed, err := c.Container(t.Context(), a.ContainerId); plan.KindOf(err) != plan.NotFound {
			t.Errorf("container: %+v %v", observed, err)
		}
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("got event %+v for a foreign pod, want none", <-events)
		}
		// Its name conflicts with ours. Our call fails and the foreign sandbox is kept.
		if got, err := c.RunSandbox(t.Context(), newPod(), plan.SandboxConfig{}); err == nil || got.ID != "" {
			t.Errorf("sandbox with a conflicting name: %+v %v", got, err)
		}
		if all := fake.Sandboxes(); len(all) != 1 || !all[0].Ready {
			t.Errorf("foreign sandbox: %+v", all)
		}
	})
}

// TestCanceledCallMayComplete: after the caller cancels, the runtime gets time to complete the call.
// Otherwise it leaks shims.
func TestCanceledCallMayComplete(t *testing.T) {
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		fake.Inject(crifake.Fault{RPC: "RunPodSandbox", Phase: crifake.Midway, Times: 1, Delay: 19 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if s, err := c.RunSandbox(ctx, newPod(), plan.SandboxConfig{}); !s.Ready { // no time remains for its status
			t.Errorf("call that completes after the cancellation: %+v, %v", s, err)
		}
		fake.Inject(crifake.Fault{RPC: "CreateContainer", Phase: crifake.Midway, Times: 1, Hang: true})
		startTime := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.StartContainer(ctx, newPod(), "a", containerConfigIn(plan.Sandbox{ID: fake.Sandboxes()[0].ID}))
		if took := time.Since(startTime); plan.KindOf(err) != plan.Timeout || took < 21*time.Second ||
			took > 24*time.Second {
			t.Errorf("call that never completes: %v after %s", err, took)
		}
	})
}

func TestInterruptedCallCreatesNothingTwice(t *testing.T) { // R2
	for _, row := range []struct {
		what  string
		fault crifake.Fault
	}{
		{"the response is lost", crifake.Fault{Phase: crifake.After, Times: 1, Hang: true}},
		{"it is rolled back", crifake.Fault{Phase: crifake.Midway, Times: 1, Hang: true}},
		{"it continues after the caller canceled", crifake.Fault{Phase: crifake.Midway, Times: 1,
			Delay: 25 * time.Second, IgnoreCancel: true}},
		{"it continues and then fails", crifake.Fault{Phase: crifake.Midway, Times: 1, Delay: 25 * time.Second,
			IgnoreCancel: true, Err: errors.New("no")}},
		{"nothing was started", crifake.Fault{Phase: crifake.Before, Times: 1, Hang: true}},
	} {
		for _, rpc := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
			if rpc == "StartContainer" && row.fault.Phase == crifake.Midway &&
				(!row.fault.IgnoreCancel || row.fault.Err != nil) {
				continue // a failed start is not rolled back: see the conformance suite
			}
			t.Run(rpc+": "+row.what, func(t *testing.T) {
				withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
					fault := row.fault
					fault.RPC = rpc
					fake.Inject(fault)
					pod := newPod()
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					s, err := c.RunSandbox(ctx, pod, plan.SandboxConfig{})
					if err == nil {
						_, err = c.StartContainer(ctx, pod, "a", containerConfigIn(s))
					}
					if plan.KindOf(err) != plan.Timeout {
						t.Fatalf("interrupted: kind %v: %v", plan.KindOf(err), err)
					}
					_, a := startPod(t, c, pod)
					sandboxes, containers := fake.Sandboxes(), fake.Containers()
					if len(sandboxes) != 1 || !sandboxes[0].Ready || len(containers) != 1 || containers[0].ID != a.ID ||
						containers[0].State != runtimeapi.ContainerState_CONTAINER_RUNNING {
						t.Errorf("final state: %+v %+v", sandboxes, containers)
					}
				})
			})
		}
	}
}

// TestResultOfCanceledCallIsReturned: the runtime may complete a canceled call, because an interrupted one leaves more
// behind.
func TestResultOfCanceledCallIsReturned(t *testing.T) { // R2
	for _, rpc := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
		t.Run(rpc, func(t *testing.T) {
			withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
				fake.Inject(crifake.Fault{RPC: rpc, Phase: crifake.Midway, Times: 1, Delay: 1500 * time.Millisecond})
				pod := newPod()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(time.Second, cancel)
				s, err := c.RunSandbox(ctx, pod, plan.SandboxConfig{})
				if s.ID == "" {
					t.Fatalf("sandbox: %+v %v", s, err)
				}
				if rpc == "RunPodSandbox" {
					return
				}
				a, err := c.StartContainer(ctx, pod, "a", containerConfigIn(s))
				switch {
				case rpc == "StartContainer" && (err != nil || a.State != plan.Running):
					t.Errorf("started: %+v %v", a, err)
				case rpc == "CreateContainer" && (plan.KindOf(err) != plan.Canceled || a.ID == "" ||
					a.State != plan.Created):
					t.Errorf("created but not started afterwards: %+v %v", a, err)
				}
			})
		})
	}
}

func TestInterruptedSandboxIsReturnedWithError(t *testing.T) { // R2
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		pod := newPod()
		for _, rpc := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
			fake.Inject(crifake.Fault{RPC: rpc, Phase: crifake.After, Times: 1, Hang: true})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := c.RunSandbox(ctx, pod, plan.SandboxConfig{})
		if err == nil || s.ID == "" || !s.Ready {
			t.Errorf("sandbox: %+v %v", s, err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Second, cancel)
		a, err := c.StartContainer(ctx, pod, "a", containerConfigIn(s))
		if plan.KindOf(err) != plan.Canceled || a.ID == "" || a.State != plan.Created {
			t.Errorf("created: %+v, kind %v: %v", a, plan.KindOf(err), err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b, err := c.StartContainer(ctx, pod, "a", containerConfigIn(s))
		if plan.KindOf(err) != plan.Timeout || b.ID == "" || b.ID == a.ID || b.State != plan.Running {
			t.Errorf("started: %+v, kind %v: %v", b, plan.KindOf(err), err)
		}
	})
}

func TestNameReservedForeverFails(t *testing.T) { // R2
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		removeFault := fake.Inject(crifake.Fault{RPC: "RunPodSandbox", Phase: crifake.Midway, Times: 1, Hang: true,
			IgnoreCancel: true})
		defer removeFault()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.RunSandbox(ctx, newPod(), plan.SandboxConfig{}); plan.KindOf(err) != plan.Timeout {
			t.Fatal(err)
		}
		startTime := time.Now()
		_, err := c.RunSandbox(t.Context(), newPod(), plan.SandboxConfig{})
		if err == nil || !strings.Contains(err.Error(), "earlier attempt is still in progress") ||
			reasonOf(err) != "FailedCreatePodSandBox" {
			t.Errorf("reason %q: %v", reasonOf(err), err)
		}
		if took := time.Since(startTime); took > 10*time.Second {
			t.Errorf("failed after %v, want at most 10s", took)
		}
	})
}

func TestStopAndRemoveMissingObjectSucceed(t *testing.T) { // R3
	for _, old := range []bool{false, true} {
		withFake(t, crifake.Options{Containerd16: old}, func(t *testing.T, _ *crifake.Runtime, c *cri.Client) {
			id := strings.Repeat("0", 64)
			if a, err := c.StopContainer(t.Context(), id, time.Second); err != nil || a.ID != "" {
				t.Errorf("stop container: %+v %v", a, err)
			}
			for what, err := range map[string]error{
				"remove container": c.RemoveContainer(t.Context(), id),
				"stop sandbox":     c.StopSandbox(t.Context(), id),
				"remove sandbox":   c.RemoveSandbox(t.Context(), id),
			} {
				if err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}

func TestEveryCallHasDeadline(t *testing.T) { // R4
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		pod := newPod()
		s, a := startPod(t, c, pod)
		defer fake.Inject(crifake.Fault{Hang: true})()
		other := newPod()
		other.UID, other.Name = "uid-other", "other"
		for _, row := range []struct {
			what string
			want time.Duration
			call func(ctx context.Context) error
		}{
			{"version", 10 * time.Second, func(ctx context.Context) error { _, _, err := c.Version(ctx); return err }},
			{"status", 10 * time.Second, func(ctx context.Context) error { _, err := c.Status(ctx); return err }},
			{"run sandbox", 4*time.Minute + 2*time.Second, func(ctx context.Context) error {
				_, err := c.RunSandbox(ctx, other, plan.SandboxConfig{})
				return err
			}},
			{"stop sandbox", 2 * time.Minute, func(ctx context.Context) error { return c.StopSandbox(ctx, s.ID) }},
			{"remove sandbox", 2 * time.Minute, func(ctx context.Context) error { return c.RemoveSandbox(ctx, s.ID) }},
			{"start container", 2*time.Minute + 2*time.Second, func(ctx context.Context) error {
				_, err := c.StartContainer(ctx, pod, "a", containerConfigIn(s))
				return err
			}},
			{"stop container with a grace period of 30 s", 90 * time.Second, func(ctx context.Context) error {
				_, err := c.StopContainer(ctx, a.ID, 30*time.Second)
				return err
			}},
			{"remove container", 2 * time.Minute, func(ctx context.Context) error {
				return c.RemoveContainer(ctx, a.ID)
			}},
			{"get pod", 30 * time.Second, func(ctx context.Context) error {
				_, err := c.Pod(ctx, pod.UID)
				return err
			}},
			{"list all pods", 30 * time.Second, func(ctx context.Context) error { _, err := c.Pods(ctx); return err }},
			{"exec with 5 s", 15 * time.Second, func(ctx context.Context) error {
				_, _, _, err := c.ExecSync(ctx, a.ID, []string{"x"}, 5*time.Second)
				return err
			}},
			{"exec without timeout, canceled after an hour", time.Hour, func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Hour)
				defer cancel()
				_, _, _, err := c.ExecSync(ctx, a.ID, []string{"x"}, 0)
				return err
			}},
			{"exec URL", 30 * time.Second, func(ctx context.Context) error {
				_, err := c.ExecURL(ctx, a.ID, []string{"x"}, cri.Streams{})
				return err
			}},
			{"update", 30 * time.Second, func(ctx context.Context) error { return c.UpdateResources(ctx, a.ID, nil) }},
			{"reopen log", 30 * time.Second, func(ctx context.Context) error { return c.ReopenLog(ctx, a.ID) }},
		} {
			startTime := time.Now()
			err := row.call(t.Context())
			if took := time.Since(startTime); plan.KindOf(err) != plan.Timeout || took != row.want {
				t.Errorf("%s: after %v, want %v: kind %v: %v", row.what, took, row.want, plan.KindOf(err), err)
			}
		}
	})
}

func TestEveryErrorHasAKind(t *testing.T) { // R5
	const sandbox, create, start, list = "RunPodSandbox", "CreateContainer", "StartContainer", "ListPodSandbox"
	for _, row := range []struct {
		what   string
		rpc    string
		code   codes.Code
		text   string
		kind   plan.ErrorKind
		reason string
	}{
		{"containerd cannot set up the network", sandbox, codes.Unknown,
			`failed to setup network for sandbox "x": plugin type="bridge" failed (add): no IP addresses available ` +
				`in range set: 10.0.0.1-10.0.0.2`, plan.Network, "FailedCreatePodSandBox"},
		{"there is no network configuration", sandbox, codes.Unknown,
			"failed to setup network for sandbox: cni plugin not initialized", plan.Network, "FailedCreatePodSandBox"},
		{"CRI-O cannot set up the network", sandbox, codes.Unknown, "failed to create pod network sandbox k8s_x",
			plan.Network, "FailedCreatePodSandBox"},
		{"the sandbox image cannot be pulled", sandbox, codes.Unknown, "failed to get sandbox image", plan.Other,
			"FailedCreatePodSandBox"},
		{"the disk is full", create, codes.Unknown, "failed to create snapshot: write /x: no space left on device",
			plan.NoSpace, "CreateContainerError"},
		{"the quota is exhausted", create, codes.Unknown, "mkdir: disk quota exceeded", plan.NoSpace,
			"CreateContainerError"},
		{"a cgroup cannot be created, which the kernel also reports as ENOSPC", start, codes.Unknown,
			"runc: mkdir /sys/fs/cgroup/x: no space left on device", plan.Other, "RunContainerError"},
		{"the image does not exist", create, codes.NotFound, `failed to resolve image "x": not found`,
			plan.ImageNotFound,
			"CreateContainerError"},
		{"the content of the image does not exist", create, codes.NotFound,
			`failed to get image from containerd "sha256:0": not found`,
			plan.ImageNotFound, "CreateContainerError"},
		{"the sandbox does not exist", create, codes.NotFound, `failed to find sandbox id "x": not found`,
			plan.NotFound,
			"CreateContainerError"},
		{"the configuration is rejected", create, codes.InvalidArgument, "bad", plan.Invalid, "CreateContainerError"},
		{"runc cannot start it", start, codes.Unknown, "OCI runtime create failed", plan.Other, "RunContainerError"},
		{"the runtime does not implement the call", list, codes.Unimplemented, "unknown method", plan.Unsupported, ""},
		{"the runtime is starting", create, codes.Unavailable, "server is not initialized yet: unavailable",
			plan.Unavailable,
			"CreateContainerError"},
		{"the runtime is starting, 1.6", create, codes.Unknown, "server is not initialized yet", plan.Unavailable,
			"CreateContainerError"},
		{"the runtime is not listening", sandbox, codes.Unavailable,
			`connection error: desc = "transport: Error while dialing: dial unix /x: connect: connection refused"`,
			plan.Unavailable, "FailedCreatePodSandBox"},
		{"the connection broke during a mutating call", start, codes.Unavailable, "error reading from server: EOF",
			plan.Timeout,
			"RunContainerError"},
		{"the connection broke during a read", list, codes.Unavailable, "error reading from server: EOF",
			plan.Unavailable,
			""},
		{"the runtime's own deadline expired", sandbox, codes.DeadlineExceeded, "context deadline exceeded",
			plan.Timeout,
			"FailedCreatePodSandBox"},
		{"the runtime canceled the call", start, codes.Canceled, "context canceled", plan.Timeout, "RunContainerError"},
		{"a response is too large", list, codes.ResourceExhausted, "received message larger than max", plan.Other, ""},
	} {
		t.Run(row.what, func(t *testing.T) {
			withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
				pod := newPod()
				defer fake.Inject(crifake.Fault{RPC: row.rpc, Err: status.Error(row.code, row.text)})()
				s, err := c.RunSandbox(t.Context(), pod, plan.SandboxConfig{})
				if err == nil {
					_, err = c.StartContainer(t.Context(), pod, "a", containerConfigIn(s))
				}
				if err == nil {
					_, err = c.Pods(t.Context())
				}
				if _, ok := errors.AsType[*plan.Error](err); !ok || plan.KindOf(err) != row.kind ||
					reasonOf(err) != row.reason {
					t.Errorf("kind %v, reason %q, want %v, %q: %v", plan.KindOf(err), reasonOf(err), row.kind,
						row.reason, err)
				}
				if err != nil && (!strings.Contains(err.Error(), row.text) ||
					strings.Contains(err.Error(), "rpc error")) {
					t.Errorf("error for users: %v", err)
				}
			})
		})
	}
}

func TestCanceledIsNotTimeout(t *testing.T) { // R5
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		defer fake.Inject(crifake.Fault{RPC: "RunPodSandbox", Hang: true})()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := c.RunSandbox(ctx, newPod(), plan.SandboxConfig{}); plan.KindOf(err) != plan.Canceled {
			t.Errorf("kind %v: %v", plan.KindOf(err), err)
		}
	})
}

func TestEventStreamLossIsRecovered(t *testing.T) { // R6
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		pod := newPod()
		events, synced := watchEvents(t, pod.UID, c.Events)
		<-synced
		_, a := startPod(t, c, pod)
		fake.Down()
		synctest.Wait()
		if err := fake.Exit(a.ID, 4, "OOMKilled"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := fake.CallCount("GetContainerEvents"); n < 10 || n > 25 {
			t.Errorf("got %d subscriptions in a minute, want 10 to 25", n)
		}
		fake.Up()
		startTime := time.Now()
		<-synced // a resync: observe the pod
		if took := time.Since(startTime); took > 5*time.Second {
			t.Errorf("resubscribed after %v, want at most 5s", took)
		}
		observed, err := c.Pod(t.Context(), pod.UID)
		if err != nil || len(observed.Containers) != 1 || observed.Containers[0].ExitCode != 4 ||
			observed.Containers[0].Reason != "OOMKilled" {
			t.Errorf("pod after the outage: %+v %v", observed, err)
		}
		for len(events) > 0 {
			if e := <-events; e.Kind == cri.Stopped {
				t.Error("the event was not lost, so the test is ineffective")
			}
		}
		if err := c.RemoveContainer(t.Context(), a.ID); err != nil {
			t.Fatal(err)
		}
		if e := <-events; e.Kind != cri.Deleted || len(e.Containers) != 0 || e.Sandbox == nil {
			t.Errorf("after the outage: %+v", e)
		}
	})
}

func TestPollReportsOnlyChanges(t *testing.T) {
	withFake(t, crifake.Options{Containerd16: true}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		pod := newPod()
		events, synced := watchEvents(t, pod.UID, func(ctx context.Context, report func(cri.Event)) error {
			return c.Poll(ctx,
				time.Second, report)
		})
		<-synced
		_, a := startPod(t, c, pod)
		time.Sleep(time.Minute)
		if len(events) != 1 {
			t.Errorf("got %d events for one change, want 1", len(events))
		}
		<-events
		fake.Down()
		if err := fake.Exit(a.ID, 1, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if len(events) != 0 {
			t.Errorf("event of an unavailable runtime: %+v", <-events)
		}
		fake.Up()
		if e := <-events; e.Kind != cri.Changed || !e.Hint {
			t.Errorf("after the outage: %+v", e)
		}
	})
}

func TestPollResyncsAfterOutage(t *testing.T) {
	withFake(t, crifake.Options{Containerd16: true}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		resyncs := make(chan cri.Event, 10)
		done := make(chan error, 1)
		go func() {
			done <- c.Poll(ctx, time.Second, func(e cri.Event) {
				if e.Kind == cri.Resync {
					resyncs <- e
				}
			})
		}()
		for _, want := range []int{1, 2, 3} { // number of times the runtime became available
			time.Sleep(time.Minute)
			if len(resyncs) != want {
				t.Errorf("%d resyncs, want %d", len(resyncs), want)
			}
			fake.Down()
			time.Sleep(time.Minute)
			fake.Up()
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestStatusCachesCgroupDriver(t *testing.T) {
	withFake(t, crifake.Options{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS},
		func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
			fake.SetNetworkNotReady("no networks found in /etc/cni/net.d")
			for range 3 {
				s, err := c.Status(t.Context())
				if err != nil || s.CgroupDriver != "cgroupfs" || s.NetworkReady || !s.Ready ||
					!strings.Contains(s.NetworkMessage, "no networks found") {
					t.Errorf("%+v %v", s, err)
				}
			}
			if n := fake.CallCount("RuntimeConfig"); n != 1 {
				t.Errorf("got %d RuntimeConfig calls, want 1", n)
			}
			// After an outage, the runtime may be a different one.
			fake.Down()
			if _, err := c.Status(t.Context()); plan.KindOf(err) != plan.Unavailable {
				t.Error(err)
			}
			fake.Up()
			if _, err := c.Status(t.Context()); err != nil || fake.CallCount("RuntimeConfig") != 2 {
				t.Errorf("got %d RuntimeConfig calls, want 2: %v", fake.CallCount("RuntimeConfig"), err)
			}
		})
}

func TestPodStartCallCounts(t *testing.T) {
	withFake(t, crifake.Options{}, func(t *testing.T, fake *crifake.Runtime, c *cri.Client) {
		startPod(t, c, newPod())
		for rpc, want := range map[string]int{"RunPodSandbox": 1, "PodSandboxStatus": 1, "CreateContainer": 1,
			"StartContainer":  1,
			"ContainerStatus": 0, "ListContainers": 0, "ListPodSandbox": 0} {
			if got := fake.CallCount(rpc); got != want {
				t.Errorf("%s: %d calls, want %d", rpc, got, want)
			}
		}
	})
}

func TestDialRejectsInvalidEndpoint(t *testing.T) {
	for _, endpoint := range []string{"", "containerd.sock", "tcp://127.0.0.1:1", "unix://host/x", "unix:relative",
		"unix:///%zz"} {
		_, err := cri.Dial(t.Context(), cri.Options{RuntimeEndpoint: endpoint})
		if err == nil || !strings.Contains(err.Error(), "containerRuntimeEndpoint") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	c, err := cri.Dial(t.Context(), cri.Options{RuntimeEndpoint: "unix:///no/such/runtime.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Version(t.Context()); plan.KindOf(err) != plan.Unavailable {
		t.Errorf("not listening: kind %v: %v", plan.KindOf(err), err)
	}
}

// TestWarnPodReceivesWarnings: missing features of a running pod are reported for the pod, because users do not
// read the agent's log.
func TestWarnPodReceivesWarnings(t *testing.T) {
	t.Parallel()
	fake := crifake.New(crifake.Options{})
	defer fake.Close()
	fake.AddImage("x:1")
	var warnings []string
	c, err := cri.Dial(t.Context(), cri.Options{
		Conn:    fake.Conn(),
		WarnPod: func(pod *corev1.Pod, reason, _ string) { warnings = append(warnings, pod.Name+" "+reason) },
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod()
	pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}}
	s, err := c.RunSandbox(t.Context(), pod, plan.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.StartContainer(t.Context(), pod, "a", plan.ContainerConfig{Sandbox: s, Image: plan.Image{ID: "x:1"},
		Objects: plan.Objects{
			{Kind: plan.ConfigMap, Name: "c"}: {ConfigMap: &corev1.ConfigMap{Data: map[string]string{"a=b": "1"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(warnings, ", "); got != "web MissingClusterDNS, web InvalidEnvironmentVariableNames" {
		t.Errorf("got warnings %q", got)
	}
}
