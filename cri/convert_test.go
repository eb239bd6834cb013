package cri

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// TestWithNetworkState: a sandbox without its networks is not ready, or has no
// address while they are attached. A sandbox that needs none is not checked.
func TestWithNetworkState(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "p", "u-1"
	plain, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations = map[string]string{podspec.NetworksAnnotation: "a"}
	more, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	observed := plan.Sandbox{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}
	for _, row := range []struct {
		name         string
		annotations  map[string]string
		done, making bool
		want         plan.Sandbox
	}{
		{"needs no networks", plain.Annotations, false, false, observed},
		{"has its networks", more.Annotations, true, true, observed},
		{"is being attached", more.Annotations, false, true, plan.Sandbox{ID: "s", Ready: true}},
		{"lacks its networks", more.Annotations, false, false, plan.Sandbox{ID: "s", IPs: observed.IPs}},
	} {
		c := &Client{networksAttached: func(uid, sandbox string) (done, making bool) {
			if uid != "u-1" || sandbox != "s" {
				t.Errorf("NetworksAttached called for sandbox %s of pod %s", sandbox, uid)
			}
			return row.done, row.making
		}}
		if got := c.withNetworkState(observed, more.Labels, row.annotations); !reflect.DeepEqual(got, row.want) {
			t.Errorf("sandbox that %s: got %+v", row.name, got)
		}
	}
}

// TestStartInterrupted: containerd reports the same reason and code for an interrupted start and
// for a container that cannot be created.
func TestStartInterrupted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		message string
		started int64
		want    bool
	}{
		{"failed to create containerd task: failed to create shim task: context canceled: unknown", 0, true},
		{"failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown", 0, true},
		// possibly out of memory
		{"failed to create shim task: OCI runtime create failed: runc create failed: signal: killed: unknown", 0,
			false},
		{"failed to start containerd task: context deadline exceeded: unknown", 0, true},
		{`failed to create shim task: OCI runtime create failed: exec: "nowhere": executable file not found in ` +
			`$PATH: unknown`, 0, false},
		{"context canceled", 5, false}, // the container ran
	} {
		s := &runtimeapi.ContainerStatus{Reason: "StartError", ExitCode: 128, StartedAt: row.started,
			Message: row.message}
		if got := startInterrupted(s); got != row.want {
			t.Errorf("%q, started at %d: %v", row.message, row.started, got)
		}
	}
	if startInterrupted(&runtimeapi.ContainerStatus{Reason: "Error", Message: "context canceled"}) {
		t.Error("error of a started container counts as an interrupted start")
	}
}

// containerStatus returns the status of a container that berth created.
func containerStatus() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{Id: "1", Labels: map[string]string{
		criconfig.OwnerLabel: criconfig.OwnerVersion, "io.kubernetes.container.name": "a",
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u",
	}, Annotations: map[string]string{"berth.dev/kind": plan.Main.String()}}
}

func TestContainerFromStatusImageName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"docker.io/library/a:1": "docker.io/library/a:1", "sha256:0123": "",
		"": ""} {
		s := containerStatus()
		s.Image = &runtimeapi.ImageSpec{Image: name}
		k, ok := containerFromStatus(t.Context(), s, "s")
		if !ok || k.ImageName != want {
			t.Errorf("%q: got image name %q, want %q", name, k.ImageName, want)
		}
	}
}

// TestContainerDoesNotFinishBeforeItsStart: an unknown time of the exit stays unknown.
func TestContainerDoesNotFinishBeforeItsStart(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ started, finished, want int64 }{{20, 30, 30}, {20, 10, 20}, {20, 0, 0}, {0, 10, 10}} {
		s := containerStatus()
		s.State, s.StartedAt, s.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, row.started, row.finished
		got, ok := containerFromStatus(t.Context(), s, "s")
		if !ok || !got.FinishedAt.Equal(timeFromNanos(row.want)) {
			t.Errorf("started %d, finished %d: got %v, want %d", row.started, row.finished, got.FinishedAt, row.want)
		}
	}
}
