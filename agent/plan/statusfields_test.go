package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestContainerStatusShowsResourcesMountsAndTheImagesFullName(t *testing.T) {
	t.Parallel()
	w := up(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		c.VolumeMounts = []corev1.VolumeMount{
			{Name: "v", MountPath: "/rw"},
			{Name: "v", MountPath: "/ro", ReadOnly: true},
			{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)},
			{Name: "v", MountPath: "/perhaps", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)},
		}
		emptyDir("v")(p)
	})
	spec := w.in.Pod.Spec.Containers[0]
	if got := w.decide().Status.ContainerStatuses[0].Image; got != spec.Image {
		t.Errorf("image %s of a runtime that names none, want %s", got, spec.Image)
	}
	w.change("app", func(k *Container) { k.ImageName = "docker.io/library/app:1" })
	got := w.decide().Status.ContainerStatuses[0]
	if got.Image != "docker.io/library/app:1" {
		t.Errorf("image %s", got.Image)
	}
	if got.Resources == nil || cmp.Diff(*got.Resources, spec.Resources) != "" || cmp.Diff(got.AllocatedResources, spec.Resources.Requests) != "" {
		t.Errorf("resources %v, allocated %v", got.Resources, got.AllocatedResources)
	}
	if diff := cmp.Diff([]corev1.VolumeMountStatus{
		{Name: "v", MountPath: "/rw"},
		{Name: "v", MountPath: "/ro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyDisabled)},
		{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)},
		{Name: "v", MountPath: "/perhaps", ReadOnly: true},
	}, got.VolumeMounts); diff != "" {
		t.Error(diff)
	}
}
