package criconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
)

// deviceSetup is a setup with devices of a device plugin.
func deviceSetup() plan.ContainerConfig {
	s := testContainerSetup()
	s.Mounts = []plan.Mount{{HostPath: "/own", ContainerPath: "/both"}}
	s.Devices = plan.Devices{
		IDs:  map[corev1.ResourceName][]string{"example.com/gpu": {"g0", "g1"}},
		Envs: map[string]string{"GPUS": "g0,g1", "COLOR": "theirs"},
		Mounts: []plan.Mount{{HostPath: "/lib", ContainerPath: "/gpu", ReadOnly: true},
			{HostPath: "/theirs", ContainerPath: "/both"}},
		Nodes: []plan.DeviceNode{{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"}},
		Annotations: map[string]string{"example.com/gpus": "2", "berth.dev/owner": "me",
			"io.kubernetes.container.hash": "x"},
		CDI: []string{"example.com/gpu=g0"},
	}
	return s
}

func TestContainerDevices(t *testing.T) {
	pod := makePod(func(_ *corev1.Pod, c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "COLOR", Value: "own"}}
		c.Args = []string{"$(GPUS)"}
	})
	got, err := Container(testNode(), pod, &pod.Spec.Containers[0], deviceSetup())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*runtimeapi.Device{{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu", Permissions: "rw"}},
		got.Devices, protocmp.Transform()); diff != "" {
		t.Errorf("devices: want (-) got (+):\n%s", diff)
	}
	if diff := cmp.Diff([]*runtimeapi.CDIDevice{{Name: "example.com/gpu=g0"}}, got.CDIDevices,
		protocmp.Transform()); diff != "" {
		t.Errorf("CDI devices: want (-) got (+):\n%s", diff)
	}
	var envs, mounts []string
	for _, e := range got.Envs {
		envs = append(envs, e.Key+"="+string(e.Value))
	}
	for _, m := range got.Mounts {
		mounts = append(mounts, m.HostPath+":"+m.ContainerPath)
	}
	if diff := cmp.Diff([]string{"GPUS=g0,g1", "COLOR=own"}, envs); diff != "" {
		t.Errorf("the variables of the spec take precedence: want (-) got (+):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/lib:/gpu", "/own:/both"}, mounts); diff != "" {
		t.Errorf("the mounts of the pod take precedence: want (-) got (+):\n%s", diff)
	}
	if len(got.Args) != 1 || got.Args[0] != "g0,g1" {
		t.Errorf("arguments %q", got.Args)
	}
	a := got.Annotations
	if a["example.com/gpus"] != "2" || a["berth.dev/owner"] != "" || a["io.kubernetes.container.hash"] == "x" {
		t.Errorf("annotations %v", a)
	}
	back, ok := ParseContainer(got.Labels, a)
	if diff := cmp.Diff(deviceSetup().Devices.IDs, back.Devices); !ok || diff != "" {
		t.Errorf("parsed devices: %v: want (-) got (+):\n%s", ok, diff)
	}
}

func TestContainerDevicesUnsupported(t *testing.T) {
	pod := makePod(func(*corev1.Pod, *corev1.Container) {})
	node := testNode()
	node.NoCDIReason = "CDI devices need containerd 1.7 or newer, this node has 1.6.20"
	_, err := Container(node, pod, &pod.Spec.Containers[0], deviceSetup())
	if plan.KindOf(err) != plan.Unsupported || !strings.Contains(err.Error(), node.NoCDIReason) {
		t.Errorf("%v", err)
	}
	setup := deviceSetup()
	setup.Devices.Envs = map[string]string{"A=B": "x"}
	_, err = Container(testNode(), pod, &pod.Spec.Containers[0], setup)
	if plan.KindOf(err) != plan.Invalid || !strings.Contains(err.Error(), "of a device plugin") {
		t.Errorf("%v", err)
	}
}
