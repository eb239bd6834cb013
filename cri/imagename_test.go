package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

func TestImageNameOfAStatusIsTheRuntimesUnlessItIsAnID(t *testing.T) {
	t.Parallel()
	labels := map[string]string{
		criconfig.OwnerLabel: criconfig.OwnerVersion, "io.kubernetes.container.name": "a",
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u",
	}
	annotations := map[string]string{"berth.dev/kind": plan.Main.String()}
	for name, want := range map[string]string{"docker.io/library/a:1": "docker.io/library/a:1", "sha256:0123": "", "": ""} {
		k, ok := seenContainer(t.Context(), &runtimeapi.ContainerStatus{
			Id: "1", Labels: labels, Annotations: annotations, Image: &runtimeapi.ImageSpec{Image: name},
		}, "s")
		if !ok || k.ImageName != want {
			t.Errorf("%q is shown as %q, want %q", name, k.ImageName, want)
		}
	}
}
