package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestContainerStatusFields(t *testing.T) {
	t.Parallel()
	w := up(func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		c.VolumeMounts = []corev1.VolumeMount{
			{Name: "v", MountPath: "/rw"},
			{Name: "v", MountPath: "/ro", ReadOnly: true},
			{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)},
			{Name: "v", MountPath: "perhaps/", ReadOnly: true,
				RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)},
		}
		emptyDir("v")(p)
	})
	spec := w.in.Pod.Spec.Containers[0]
	if got := w.decide().Status.ContainerStatuses[0].Image; got != spec.Image {
		t.Errorf("image %s without an image name in the runtime, want %s", got, spec.Image)
	}
	user := &corev1.LinuxContainerUser{UID: 1000, GID: 3000, SupplementalGroups: []int64{3000, 4000}}
	w.change("app", func(k *Container) {
		k.ImageName, k.User, k.RecursiveReadOnly = "docker.io/library/app:1", user, []string{"/rro", "/perhaps"}
	})
	got := w.decide().Status.ContainerStatuses[0]
	if got.Image != "docker.io/library/app:1" {
		t.Errorf("image %s", got.Image)
	}
	if got.Resources == nil || cmp.Diff(*got.Resources, spec.Resources) != "" ||
		cmp.Diff(got.AllocatedResources, spec.Resources.Requests) != "" {
		t.Errorf("resources %v, allocated %v", got.Resources, got.AllocatedResources)
	}
	if diff := cmp.Diff([]corev1.VolumeMountStatus{
		{Name: "v", MountPath: "/rw"},
		{Name: "v", MountPath: "/ro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyDisabled)},
		{Name: "v", MountPath: "/rro", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)},
		{Name: "v", MountPath: "perhaps/", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyEnabled)},
	}, got.VolumeMounts); diff != "" {
		t.Error(diff)
	}
	if got.User == nil || cmp.Diff(got.User.Linux, user) != "" {
		t.Errorf("user %v, want %v", got.User, user)
	}
}

// TestRecursiveReadOnlyMountStatus checks the mount status of containers that do not exist yet and
// of those created with an older runtime.
func TestRecursiveReadOnlyMountStatus(t *testing.T) {
	t.Parallel()
	asks := func(p *corev1.Pod) {
		emptyDir("v")(p)
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "v", MountPath: "/m", ReadOnly: true, RecursiveReadOnly: new(corev1.RecursiveReadOnlyIfPossible)},
		}
	}
	for _, row := range []struct {
		name string
		w    *driver
		can  bool
		want corev1.RecursiveReadOnlyMode
	}{
		{"not created yet, supported by the runtime", fresh(asks), true, corev1.RecursiveReadOnlyEnabled},
		{"not created yet, not supported by the runtime", fresh(asks), false, corev1.RecursiveReadOnlyDisabled},
		{"created when the runtime did not support it", up(asks), true, corev1.RecursiveReadOnlyDisabled},
	} {
		row.w.in.Observed.RecursiveReadOnly = row.can
		got := row.w.decide().Status.ContainerStatuses[0].VolumeMounts
		if len(got) != 1 || got[0].RecursiveReadOnly == nil || *got[0].RecursiveReadOnly != row.want {
			t.Errorf("%s: %+v, want %s", row.name, got, row.want)
		}
	}
}

func TestStartResponseKeepsEventFields(t *testing.T) {
	t.Parallel()
	event := Container{ID: "c", Name: "app", State: Running, ImageName: "docker.io/library/app:1",
		User: &corev1.LinuxContainerUser{UID: 7}}
	o := Observed{}.WithContainer(event).WithContainer(Container{ID: "c", Name: "app", State: Running})
	if got := o.Containers[0]; got.User == nil || got.User.UID != 7 || got.ImageName != event.ImageName {
		t.Errorf("%+v", got)
	}
}
