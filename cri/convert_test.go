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

// TestWithNetworkState is not ready, or while they are made has no
// address. Nobody is asked about one that needs none.
func TestWithNetworkState(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "p", "u-1"
	plain, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxSetup{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations = map[string]string{podspec.NetworksAnnotation: "a"}
	more, err := criconfig.Sandbox(criconfig.Node{}, pod, plan.SandboxSetup{})
	if err != nil {
		t.Fatal(err)
	}
	seen := plan.Sandbox{ID: "s", Ready: true, IPs: []string{"10.0.0.2"}}
	for _, row := range []struct {
		what         string
		annotations  map[string]string
		done, making bool
		want         plan.Sandbox
	}{
		{"needs none", plain.Annotations, false, false, seen},
		{"has them", more.Annotations, true, true, seen},
		{"gets them", more.Annotations, false, true, plan.Sandbox{ID: "s", Ready: true}},
		{"has not got them", more.Annotations, false, false, plan.Sandbox{ID: "s", IPs: seen.IPs}},
	} {
		c := &Client{networksAttached: func(uid, sandbox string) (done, making bool) {
			if uid != "u-1" || sandbox != "s" {
				t.Errorf("asked about %s of %s", sandbox, uid)
			}
			return row.done, row.making
		}}
		if got := c.withNetworkState(seen, more.Labels, row.annotations); !reflect.DeepEqual(got, row.want) {
			t.Errorf("one that %s: %+v", row.what, got)
		}
	}
}

// TestStartInterrupted is told from one that cannot be made: containerd gives both
// the same reason and the same code.
func TestStartInterrupted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		message string
		started int64
		want    bool
	}{
		{"failed to create containerd task: failed to create shim task: context canceled: unknown", 0, true},
		{"failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown", 0, true},
		// too little memory, it may be
		{"failed to create shim task: OCI runtime create failed: runc create failed: signal: killed: unknown", 0, false},
		{"failed to start containerd task: context deadline exceeded: unknown", 0, true},
		{`failed to create shim task: OCI runtime create failed: exec: "nowhere": executable file not found in $PATH: unknown`, 0, false},
		{"context canceled", 5, false}, // it ran
	} {
		s := &runtimeapi.ContainerStatus{Reason: "StartError", ExitCode: 128, StartedAt: row.started, Message: row.message}
		if got := startInterrupted(s); got != row.want {
			t.Errorf("%q, started at %d: %v", row.message, row.started, got)
		}
	}
	if startInterrupted(&runtimeapi.ContainerStatus{Reason: "Error", Message: "context canceled"}) {
		t.Error("what a container says of itself was taken for it")
	}
}

func TestContainerFromStatusImageName(t *testing.T) {
	t.Parallel()
	labels := map[string]string{
		criconfig.OwnerLabel: criconfig.OwnerVersion, "io.kubernetes.container.name": "a",
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u",
	}
	annotations := map[string]string{"berth.dev/kind": plan.Main.String()}
	for name, want := range map[string]string{"docker.io/library/a:1": "docker.io/library/a:1", "sha256:0123": "",
		"": ""} {
		k, ok := containerFromStatus(t.Context(), &runtimeapi.ContainerStatus{
			Id: "1", Labels: labels, Annotations: annotations, Image: &runtimeapi.ImageSpec{Image: name},
		}, "s")
		if !ok || k.ImageName != want {
			t.Errorf("%q is shown as %q, want %q", name, k.ImageName, want)
		}
	}
}
