package cri

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
	"berth/podspec"
)

// kubeletContainer returns the labels and annotations of a container that the kubelet created.
func kubeletContainer(name string) (labels, annotations map[string]string) {
	return map[string]string{
			"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", labelPodUID: "u",
			"io.kubernetes.container.name": name,
		}, map[string]string{
			"io.kubernetes.container.hash": "8e6d5a54", "io.kubernetes.container.restartCount": "4",
			"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
			"io.kubernetes.container.terminationMessagePolicy": "File",
			"io.kubernetes.pod.terminationGracePeriod":         "30",
		}
}

func TestAdoptedContainerCountsAsCreatedFromTheSpecAtTheAdoption(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init", Image: "i"},
			{Name: "side", Image: "s", RestartPolicy: &always}},
		Containers: []corev1.Container{{Name: "first", Image: "a"}, {Name: "main", Image: "m"}},
	}}
	pod.UID, pod.Name, pod.Namespace = "u", "p", "ns"
	c := &Client{instance: "x"}
	status := func(name string) *runtimeapi.ContainerStatus {
		s := &runtimeapi.ContainerStatus{Id: name}
		s.Labels, s.Annotations = kubeletContainer(name)
		return s
	}
	foreign := status("main")
	if c.adoptContainerStatus(foreign); c.owns(foreign.Labels) {
		t.Fatal("a foreign container is owned")
	}
	c.SetAdoptions(map[types.UID]criconfig.Adoption{"u": criconfig.AdoptionOf(pod)}, nil)
	for name, want := range map[string]criconfig.ContainerLabels{
		"init": {Kind: plan.Init, Image: "i"}, "side": {Kind: plan.Sidecar, Position: 1, Image: "s"},
		"main": {Kind: plan.Main, Position: 1, Image: "m"}, "added later": {Kind: plan.Ephemeral},
	} {
		s := status(name)
		c.adoptContainerStatus(s)
		got, ok := criconfig.ParseContainer(s.Labels, s.Annotations)
		if !ok || !c.owns(s.Labels) || got.Kind != want.Kind || got.Position != want.Position ||
			got.Image != want.Image ||
			got.Attempt != 4 || got.TerminationMessagePath != "/dev/termination-log" || *got.GraceSeconds != 30 {
			t.Errorf("%s: got %+v, owned %v", name, got, ok)
		}
		if spec := podspec.FindContainer(pod, name); spec != nil && got.SpecHash != podspec.ContainerHash(spec) {
			t.Errorf("%s: got hash %s, want that of the spec", name, got.SpecHash)
		}
	}
	own := status("main")
	own.Labels[criconfig.OwnerLabel], own.Labels[criconfig.InstanceLabel] = criconfig.OwnerVersion, "x"
	own.Annotations["berth.dev/hash"] = "own"
	c.adoptContainerStatus(own)
	if !c.owns(own.Labels) || own.Annotations["berth.dev/hash"] != "own" {
		t.Error("a container that berth created in an adopted pod is not its own, or changed")
	}
	c.SetAdoptions(nil, map[types.UID]bool{"u": true})
	if released := status("main"); c.owns(own.Labels) || c.owns(released.Labels) {
		t.Error("a container of a released pod is owned")
	}
}

func TestAdoptedSandboxIsRestoredForTermination(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, PriorityClassName: "high"}}
	pod.UID, pod.Name, pod.Namespace, pod.Labels = "u", "p", "ns", map[string]string{"app": "a"}
	c := &Client{instance: "x"}
	c.SetAdoptions(map[types.UID]criconfig.Adoption{"u": criconfig.AdoptionOf(pod)}, nil)
	s := &runtimeapi.PodSandbox{Metadata: &runtimeapi.PodSandboxMetadata{Attempt: 2}}
	s.Labels, _ = kubeletContainer("")
	s.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	c.adoptSandbox(s)
	got, ok := criconfig.ParseSandbox(s.Labels, s.Annotations)
	if !ok || !got.HostNetwork || got.Attempt != 2 || got.Source != "api" {
		t.Errorf("got %+v, %v", got, ok)
	}
	restored := criconfig.PodFromSandbox(s.Labels, s.Annotations)
	if restored == nil || restored.Spec.PriorityClassName != "high" || restored.Labels["app"] != "a" {
		t.Errorf("got %+v", restored)
	}
}
