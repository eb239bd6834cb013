package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// A foreign mount inside a volume is unmounted and its content kept (V2). Symbolic links are not
// followed (V1).
func TestUnmountWithForeignMounts(t *testing.T) {
	t.Parallel()
	v, outside := newVolumes(t), t.TempDir()
	must(t, os.WriteFile(outside+"/precious", []byte("kept"), 0o600))
	pod := newPod(
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
		emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
	)
	for _, name := range []string{"disk", "memory"} {
		mustMount(t, v, pod, name, "", nil)
		dir := v.volumeDir(pod.UID, emptyDir, name)
		must(t, os.MkdirAll(dir+"/a/b", 0o700))
		must(t, os.WriteFile(dir+"/a/file", nil, 0o600))
		must(t, os.Symlink(outside, dir+"/a/link"))
		must(t, unix.Mount(outside, dir+"/a/b", "", unix.MS_BIND, ""))
		must(t, unix.Mount(outside, dir+"/a/b", "", unix.MS_BIND, "")) // stacked mounts
		must(t, unix.Mount(outside+"/precious", dir+"/a/file", "", unix.MS_BIND, ""))
		must(t, v.Unmount(t.Context(), pod, name))
		if got, err := os.ReadFile(outside + "/precious"); err != nil || string(got) != "kept" {
			t.Fatalf("%s: a foreign file was removed: %v", name, err)
		}
		wantMissing(t, dir)
	}
	if left := mountsBelow(t, v.podDir(pod.UID)); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

// Detaching a peer of a shared mount does not affect the original: mounts that were created there
// while a container had it as a subPath remain.
func TestUnmountLeavesPeers(t *testing.T) {
	t.Parallel()
	v, host := newVolumes(t), t.TempDir()
	t.Cleanup(func() { unmountBelow(t, host) })
	must(t, unix.Mount(host, host, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", host, "", unix.MS_SHARED, ""))
	pod, c := withMounts(
		newPod(hostPathVol("host", host, ""), emptyDirVol("disk", corev1.EmptyDirVolumeSource{})),
		sub("host", "x"),
	)
	mustMount(t, v, pod, "host", "", nil)
	mustMount(t, v, pod, "disk", "", nil)
	m, err := only(t, v, pod, c)
	must(t, err)
	must(t, os.Mkdir(host+"/x/later", 0o755))
	must(t, unix.Mount("tmpfs", host+"/x/later", "tmpfs", 0, ""))
	if is, err := isMount(m.HostPath + "/later"); err != nil || !is {
		t.Fatalf("the mount was not propagated, so the test is void: %v, %v", is, err)
	}
	copied := v.volumeDir(pod.UID, emptyDir, "disk") + "/copied"
	must(t, os.Mkdir(copied, 0o755))
	must(t, unix.Mount(host, copied, "", unix.MS_BIND|unix.MS_REC, ""))

	must(t, v.Unmount(t.Context(), pod, "host"))
	must(t, v.Unmount(t.Context(), pod, "disk"))
	if left := mountsBelow(t, v.podDir(pod.UID)); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
	if is, err := isMount(host + "/x/later"); err != nil || !is {
		t.Errorf("the mount of the host was removed: %v", err)
	}
}

// A volume in use is detached. Its users keep it.
func TestUnmountBusy(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(secretVol("key"))
	mustMount(t, v, pod, "key", "v1", objectsWith(nil))
	f, err := os.Open(v.volumeDir(pod.UID, secret, "key") + "/pw")
	must(t, err)
	defer f.Close()
	must(t, v.Unmount(t.Context(), pod, "key"))
	if left := mountsBelow(t, v.podDir(pod.UID)); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
	data := make([]byte, 4)
	if _, err := f.ReadAt(data, 0); err != nil || string(data) != "hush" {
		t.Errorf("the user of the volume lost its content: %q, %v", data, err)
	}
}

// An orphan of which only the UID is known is removed with all its volumes, including incomplete ones
// and those of another agent.
func TestRemoveOrphan(t *testing.T) {
	t.Parallel()
	v, outside := newVolumes(t), t.TempDir()
	must(t, os.WriteFile(outside+"/precious", nil, 0o600))
	pod, c := withMounts(
		newPod(emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
			secretVol("key")),
		sub("memory", "x"),
	)
	must(t, v.CreateDirs(t.Context(), pod))
	mustMount(t, v, pod, "memory", "", nil)
	mustMount(t, v, pod, "key", "v1", objectsWith(nil))
	_, err := only(t, v, pod, c)
	must(t, err)
	must(t, os.RemoveAll(v.markerDir(pod.UID, secret, "key")))
	csi := filepath.Join(v.podDir(pod.UID), "volumes/kubernetes.io~csi/pvc/mount")
	nfs := filepath.Join(v.podDir(pod.UID), "volumes/kubernetes.io~nfs/share")
	for _, dir := range []string{csi, nfs} {
		must(t, os.MkdirAll(dir, 0o750))
		must(t, unix.Mount(outside, dir, "", unix.MS_BIND, ""))
	}
	other := filepath.Join(v.PodLogsDir, "shop_web_other")
	must(t, os.Mkdir(other, 0o755))
	must(t, os.Mkdir(filepath.Join(v.podsDir(), "not a pod"), 0o755))

	uids, err := v.Pods(t.Context())
	if err != nil || !slices.Equal(uids, []types.UID{pod.UID}) {
		t.Fatalf("remaining: %v, %v", uids, err)
	}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uids[0], Namespace: "unknown", Name: string(uids[0])}}
	dirs, vols, err := v.Observe(t.Context(), orphan)
	if _, memory := vols["memory"]; err != nil || !dirs || !memory || len(vols) != 1 {
		t.Errorf("dirs %v, volumes %v, %v", dirs, vols, err)
	}
	must(t, v.RemoveDirs(t.Context(), orphan))
	wantMissing(t, v.podDir(pod.UID))
	wantMissing(t, v.LogDir(pod))
	if _, err := os.Stat(outside + "/precious"); err != nil {
		t.Error("V2: deleted into a mount")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("another pod's logs were removed")
	}
	if left := mountsBelow(t, v.RootDir); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
}

// A removal that was interrupted after the rename is detected and completed.
func TestRemoveInterrupted(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}))
	must(t, v.CreateDirs(t.Context(), pod))
	mustMount(t, v, pod, "disk", "", nil)
	must(t, os.Rename(v.podDir(pod.UID), v.podTrash(pod.UID)))
	dirs, vols, err := v.Observe(t.Context(), pod)
	if err != nil || !dirs || len(vols) != 0 {
		t.Errorf("dirs %v, volumes %v, %v", dirs, vols, err)
	}
	if uids, _ := v.Pods(t.Context()); !slices.Equal(uids, []types.UID{pod.UID}) {
		t.Errorf("remaining: %v", uids)
	}
	// The pod may have been recreated with the same UID.
	must(t, v.CreateDirs(t.Context(), pod))
	must(t, v.RemoveDirs(t.Context(), pod))
	if dirs, _, err = v.Observe(t.Context(), pod); err != nil || dirs {
		t.Errorf("dirs %v, %v", dirs, err)
	}
	entries, err := os.ReadDir(v.podsDir())
	if err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestRemoveCanceled(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}))
	mustMount(t, v, pod, "disk", "", nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{v.Unmount(ctx, pod, "disk"), v.RemoveDirs(ctx, pod), v.CreateDirs(ctx, pod),
		v.Mount(ctx, pod, "disk", "x", nil, nil)} {
		if plan.KindOf(err) != plan.Canceled {
			t.Errorf("kind %d of %v", plan.KindOf(err), err)
		}
	}
}

// Trees of any depth and width are removed with a limited number of open files.
func TestRemoveTree(t *testing.T) {
	t.Parallel()
	top, outside := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(outside+"/precious", nil, 0o600))
	dir := top + "/tree"
	must(t, os.Mkdir(dir, 0o700))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for depth := range 250 { // exceeds the maximum path length
		must(t, unix.Mkdirat(fd, strings.Repeat("d", 100), 0o700))
		must(t, unix.Symlinkat(outside, fd, "link"))
		next, err := unix.Openat(fd, strings.Repeat("d", 100), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(fd))
		if fd = next; depth%100 == 0 {
			must(t, unix.Mkdirat(fd, "side", 0o700))
		}
	}
	must(t, unix.Close(fd))
	for i := range 3000 {
		must(t, os.WriteFile(dir+"/"+strconv.Itoa(i), nil, 0o600))
	}
	// An earlier walk was interrupted after it had moved a part up.
	must(t, os.MkdirAll(top+"/tree.0/deep", 0o700))
	must(t, removeTree(t.Context(), dir))
	must(t, removeTree(t.Context(), dir))
	if entries, err := os.ReadDir(top); err != nil || len(entries) != 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	if _, err := os.Stat(outside + "/precious"); err != nil {
		t.Error("V1: followed a link out")
	}
}

// The error names the entry that cannot be deleted.
func TestRemoveImmutable(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{}))
	mustMount(t, v, pod, "disk", "", nil)
	// A read-only mount below the volume's own directory cannot be renamed away.
	dir := v.volumeDir(pod.UID, emptyDir, "disk")
	ro := filepath.Join(v.podDir(pod.UID), "volumes")
	must(t, unix.Mount(ro, ro, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", ro, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err := v.Unmount(t.Context(), pod, "disk")
	e, ok := errors.AsType[*plan.Error](err)
	if !ok || e.Kind != plan.Other || e.Reason != "FailedUnmount" || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
	must(t, unix.Unmount(ro, 0))
	must(t, v.Unmount(t.Context(), pod, "disk"))
}
