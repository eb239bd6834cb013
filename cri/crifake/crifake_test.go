package crifake

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startContainer starts a container that executes the steps.
func startContainer(t *testing.T, c runtimeapi.RuntimeServiceClient, steps ...string) string {
	t.Helper()
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Uid: "u",
		Namespace: "ns"}}
	s, err := c.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: s.PodSandboxId, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "a"},
			Image: &runtimeapi.ImageSpec{Image: "x"}, Args: steps},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartContainer(t.Context(),
		&runtimeapi.StartContainerRequest{ContainerId: a.ContainerId}); err != nil {
		t.Fatal(err)
	}
	return a.ContainerId
}

func inBubble(t *testing.T, test func(t *testing.T, r *Runtime, c runtimeapi.RuntimeServiceClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{})
		defer r.Close()
		r.AddImage("x")
		test(t, r, runtimeapi.NewRuntimeServiceClient(r.Conn()))
	})
}

func TestProcessSteps(t *testing.T) {
	for _, row := range []struct {
		name  string
		steps []string
		grace int64 // of a stop after one minute; negative: none
		after time.Duration
		code  int32
	}{
		{"exits by itself", []string{"sleep", "10s", ",", "exit", "4"}, -1, 10 * time.Second, 4},
		{"exits after its last step", []string{"sleep", "2"}, -1, 2 * time.Second, 0},
		{"exits on the stop signal", []string{"sleep"}, 30, time.Minute, 143},
		{"handles the stop signal", []string{"on-term", "3s", "7", ",", "serve"}, 30, time.Minute + 3*time.Second,
			7},
		{"handles the stop signal too slowly", []string{"on-term", "40s", "7", ",", "serve"}, 30,
			time.Minute + 30*time.Second, 137},
		{"ignores the stop signal", []string{"ignore-term", ",", "sleep"}, 30, time.Minute + 30*time.Second, 137},
		{"is killed immediately", []string{"sleep"}, 0, time.Minute, 137},
		{"sleeps forever", nil, 5, time.Minute, 143},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *Runtime, c runtimeapi.RuntimeServiceClient) {
				start := time.Now()
				id := startContainer(t, c, row.steps...)
				if row.grace >= 0 {
					time.Sleep(time.Minute)
					if _, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id,
						Timeout: row.grace}); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(time.Hour)
				}
				resp, err := c.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
				if err != nil {
					t.Fatal(err)
				}
				took := time.Duration(resp.Status.FinishedAt - start.UnixNano())
				if resp.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED ||
					resp.Status.ExitCode != row.code ||
					took != row.after {
					t.Errorf("%v, exit code %d after %v", resp.Status.State, resp.Status.ExitCode, took)
				}
			})
		})
	}
}

func TestFaultMatching(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runtime, c runtimeapi.RuntimeServiceClient) {
		run := func(name string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.RunPodSandbox(ctx,
				&runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
					Metadata: &runtimeapi.PodSandboxMetadata{Name: name}}})
			return err
		}
		r.Inject(Fault{RPC: "RunPodSandbox", Match: MatchPod("a"), Times: 2, Err: errors.New("injected")})
		lift := r.Inject(Fault{RPC: "RunPodSandbox", Match: MatchPod("b"), Hang: true})
		for i := range 2 {
			if err := run("a"); status.Convert(err).Message() != "injected" {
				t.Errorf("fault %d: %v", i, err)
			}
		}
		if err := run("a"); err != nil {
			t.Errorf("third call: %v", err)
		}
		if err := run("b"); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("hang: %v", err)
		}
		lift()
		if err := run("b"); err != nil {
			t.Errorf("after lift: %v", err)
		}
		if n := r.CallCount("RunPodSandbox"); n != 5 || len(r.Sandboxes()) != 2 {
			t.Errorf("%d calls, %d sandboxes", n, len(r.Sandboxes()))
		}
	})
}

func TestRestartCutsCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runtime, c runtimeapi.RuntimeServiceClient) {
		id := startContainer(t, c, "ignore-term", ",", "sleep")
		time.AfterFunc(time.Second, r.Restart)
		start := time.Now()
		_, err := c.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 60})
		if status.Code(err) != codes.Unavailable || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if a, ok := r.FindContainer("pod", "a"); !ok || a.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("container state after Restart: %+v", a)
		}
		r.Down()
		if _, err := c.Version(t.Context(), &runtimeapi.VersionRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("down: %v", err)
		}
	})
}

func TestPullImage(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runtime, _ runtimeapi.RuntimeServiceClient) {
		c := runtimeapi.NewImageServiceClient(r.Conn())
		r.PublishImage("private/app:1", PublishedImage{PullDuration: 10 * time.Minute, Size: 5, User: "1000",
			Password: "secret"})
		pull := func(ref, password string) error {
			_, err := c.PullImage(t.Context(), &runtimeapi.PullImageRequest{
				Image: &runtimeapi.ImageSpec{Image: ref}, Auth: &runtimeapi.AuthConfig{Password: password}})
			return err
		}
		if err := pull("private/none", ""); status.Code(err) != codes.NotFound {
			t.Errorf("an unpublished image: %v", err)
		}
		if err := pull("private/app:1", "wrong"); err == nil {
			t.Error("pull with a wrong password succeeded")
		}
		start := time.Now()
		if err := pull("docker.io/private/app:1", "secret"); err != nil || time.Since(start) != 10*time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		resp, err := c.ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "private/app:1"}})
		if err != nil || resp.GetImage().GetUid().GetValue() != 1000 || resp.GetImage().GetSize() != 5 {
			t.Errorf("%v %v", resp, err)
		}
		if _, err := c.RemoveImage(t.Context(),
			&runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: resp.Image.Id}}); err != nil {
			t.Error(err)
		}
		if resp, err := c.ImageStatus(t.Context(),
			&runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "private/app:1"}}); err != nil ||
			resp.Image != nil {
			t.Errorf("removed: %v %v", resp, err)
		}
	})
}

func TestNormalizeName(t *testing.T) {
	for in, want := range map[string]string{
		"x": "docker.io/library/x:latest", "x:1": "docker.io/library/x:1", "me/x": "docker.io/me/x:latest",
		"localhost/x:1": "localhost/x:1", "host:5000/x": "host:5000/x:latest", "q.io/x@sha256:0": "q.io/x@sha256:0",
	} {
		if got := normalizeName(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
