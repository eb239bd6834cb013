package volumes

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wrappedPrefix is the prefix of the kubelet's marker of a volume whose content it writes.
const wrappedPrefix = "wrapped_"

// AdoptDir marks the directory of a pod that the kubelet created as berth's own, and its volumes that
// the kubelet has set up as set up. Nothing is mounted or changed. The content of a volume counts as
// unknown, so that it is compared and updated.
func (v *Volumes) AdoptDir(pod *corev1.Pod) error {
	there, _, err := v.PodDir(pod.UID)
	if err != nil || !there {
		return err
	}
	for i := range pod.Spec.Volumes {
		if err := v.adoptVolume(pod.UID, &pod.Spec.Volumes[i]); err != nil {
			return failed("", err)
		}
	}
	return v.MarkDir(pod.UID)
}

func (v *Volumes) adoptVolume(uid types.UID, vol *corev1.Volume) error {
	k, err := kindOf(vol)
	if err != nil || k == hostPath || k == csi { // the path of a hostPath is checked again, a driver is called again
		return nil //nolint:nilerr // an unsupported volume is reported when the pod is admitted
	}
	if err := checkNames(vol.Name); err != nil {
		return err
	}
	if _, done := v.setUp(uid, k, vol.Name); done {
		return nil
	}
	name := vol.Name
	if k.projects() {
		name = wrappedPrefix + name
	}
	ready, err := exists(filepath.Join(v.markerDir(uid, emptyDir, name), markerName))
	if err != nil || !ready {
		return err
	}
	dir := v.volumeDir(uid, k, vol.Name)
	if fi, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir() {
		return nil
	}
	m := marker{Boot: v.boot}
	if m.Mounted, err = isMount(dir); err != nil {
		return err
	}
	return v.writeMarker(uid, k, vol.Name, m)
}

// UnmarkDir removes the mark from the pod's directory, if it has one: the pod is foreign then. Its
// volumes stay as they are, and the kubelet finds them by their layout.
func (v *Volumes) UnmarkDir(uid types.UID) error {
	if err := checkNames(string(uid)); err != nil {
		return err
	}
	err := os.Remove(filepath.Join(v.podDir(uid), ownerName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
