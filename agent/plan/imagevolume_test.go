package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestImageVolumes(t *testing.T) {
	t.Parallel()
	volume := func(name, reference string, policy corev1.PullPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: policy},
			}})
		}
	}
	with := func(reference string, policy corev1.PullPolicy) *walk {
		return fresh(mains(con("app", mounts("data"))), volume("data", reference, policy))
	}
	none := &Error{Kind: NotFound, Reason: "ErrImagePull", Err: errors.New("no such image")}
	gone := &Error{Kind: ImageNotFound, Err: errors.New("gone")}
	check(t, []row{
		{"its image is pulled beside all else, and nothing is mounted on the host", with("far", corev1.PullIfNotPresent), "make dirs, make cgroup, pull volume/data far", nil},
		{"a container waits for it", with("far", corev1.PullIfNotPresent).begin().ends2("make/dirs").ends2("make/cgroup").begin().ends2("run/sandbox"), "-",
			[]string{"app    waiting ContainerCreating"}},
		{"and starts when it is there", with("far", corev1.PullIfNotPresent).begin().obey().begin().obey(), "start app#0", nil},
		{"one that is here is not pulled", with("img", corev1.PullIfNotPresent), "make dirs, make cgroup", nil},
		{"Always pulls it once", with("img", corev1.PullAlways).begin().obey().begin().obey(), "start app#0", nil},
		{"Never says that it is missing", with("far", corev1.PullNever).begin().obey().begin().obey(), "-", []string{"app    waiting ErrImageNeverPull"}},
		{"a pull that fails shows at the container", with("far", corev1.PullIfNotPresent).begin().ends2("make/dirs").ends2("make/cgroup").fails("pull/volume/data", none), "",
			[]string{"app    waiting ErrImagePull"}},
		{"one that has vanished is pulled again, with all that the container needs", with("far", corev1.PullIfNotPresent).begin().obey().begin().obey().fails("start/app", gone).after(time.Second), "pull app img, pull volume/data far", nil},
		{"also where it is pulled always", with("far", corev1.PullAlways).begin().obey().begin().obey().fails("start/app", gone).after(time.Second), "pull app img, pull volume/data far", nil},
		{"one that nobody mounts is not pulled", fresh(volume("data", "far", corev1.PullIfNotPresent)), "make dirs, make cgroup", nil},
	})
}
