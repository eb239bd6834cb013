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

// TestASandboxWithoutItsNetworks is not ready, or while they are made has no
// address. Nobody is asked about one that needs none.
func TestASandboxWithoutItsNetworks(t *testing.T) {
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
		c := &Client{attached: func(uid, sandbox string) (done, making bool) {
			if uid != "u-1" || sandbox != "s" {
				t.Errorf("asked about %s of %s", sandbox, uid)
			}
			return row.done, row.making
		}}
		if got := c.judged(seen, more.Labels, row.annotations); !reflect.DeepEqual(got, row.want) {
			t.Errorf("one that %s: %+v", row.what, got)
		}
	}
}

// TestAStartThatWasCutOff is told from one that cannot be made: containerd gives both
// the same reason and the same code.
func TestAStartThatWasCutOff(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		message string
		started int64
		want    bool
	}{
		{"failed to create containerd task: failed to create shim task: context canceled: unknown", 0, true},
		{"failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown", 0, true},
		{"failed to create shim task: OCI runtime create failed: runc create failed: signal: killed: unknown", 0, false}, // too little memory, it may be
		{"failed to start containerd task: context deadline exceeded: unknown", 0, true},
		{`failed to create shim task: OCI runtime create failed: exec: "nowhere": executable file not found in $PATH: unknown`, 0, false},
		{"context canceled", 5, false}, // it ran
	} {
		s := &runtimeapi.ContainerStatus{Reason: "StartError", ExitCode: 128, StartedAt: row.started, Message: row.message}
		if got := startCutOff(s); got != row.want {
			t.Errorf("%q, started at %d: %v", row.message, row.started, got)
		}
	}
	if startCutOff(&runtimeapi.ContainerStatus{Reason: "Error", Message: "context canceled"}) {
		t.Error("what a container says of itself was taken for it")
	}
}
