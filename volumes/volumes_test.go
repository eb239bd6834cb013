package volumes

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// newVolumes returns Volumes in a temporary directory. It removes all remaining mounts below the
// directory at the end of the test.
func newVolumes(t testing.TB) *Volumes {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, root) })
	v, err := New(Options{
		RootDir: filepath.Join(root, "root"), PodLogsDir: filepath.Join(root, "logs"),
		NodeName: "node-1", HostIPs: []string{"192.0.2.1"}, HostsFile: filepath.Join(root, "hosts"),
		Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")}
		},
		Hostname: func(pod *corev1.Pod) (string, string) { return pod.Name, "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// mountsBelow lists mount points below a directory, deepest last.
func mountsBelow(t testing.TB, dir string) []string {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var found []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if at := strings.Fields(lines.Text())[4]; at == dir || strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}

func unmountBelow(t testing.TB, dir string) {
	for _, at := range slices.Backward(mountsBelow(t, dir)) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			t.Errorf("clean up %s: %v", at, err)
		}
	}
}

func newPod(vols ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "4b1d",
			Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init"}},
			Containers:     []corev1.Container{{Name: "app", TerminationMessagePath: "/dev/termination-log"}},
			Volumes:        vols,
		},
	}
}

func vol(name string, src corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: src}
}

func emptyDirVol(name string, src corev1.EmptyDirVolumeSource) corev1.Volume {
	return vol(name, corev1.VolumeSource{EmptyDir: &src})
}

func hostPathVol(name, path string, typ corev1.HostPathType) corev1.Volume {
	return vol(name, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &typ}})
}

func configMapVol(name string) corev1.Volume {
	return vol(
		name,
		corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"}},
		},
	)
}

func secretVol(name string) corev1.Volume {
	return vol(
		name,
		corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key", DefaultMode: new(int32(0o400))}},
	)
}

func downwardVol(name string) corev1.Volume {
	return vol(
		name,
		corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		}}},
	)
}

func projectedVol(name string) corev1.Volume {
	return vol(name, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cfg"}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}}},
	}}})
}

// objectsWith holds a ConfigMap cfg with that data and a Secret key.
func objectsWith(data map[string]string) plan.Objects {
	return plan.Objects{
		{Kind: plan.ConfigMap, Name: "cfg"}: {ConfigMap: &corev1.ConfigMap{Data: data}},
		{Kind: plan.Secret, Name: "key"}:    {Secret: &corev1.Secret{Data: map[string][]byte{"pw": []byte("hush")}}},
	}
}

func mustMount(t testing.TB, v *Volumes, pod *corev1.Pod, name, version string, objs plan.Objects) {
	t.Helper()
	if err := v.Mount(t.Context(), pod, name, version, objs, nil); err != nil {
		t.Fatal(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mode(t testing.TB, path string) fs.FileMode {
	t.Helper()
	fi, err := os.Stat(path)
	must(t, err)
	return fi.Mode()
}

func gid(t testing.TB, path string) int {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return int(st.Gid)
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

func wantMissing(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}

func fsType(t testing.TB, path string) (int64, int64) {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(path, &st))
	return st.Type, int64(st.Blocks) * st.Bsize
}

// The lifecycle of a pod with one volume of every kind.
func TestLifecycleOfEveryKind(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	host := t.TempDir()
	pod := newPod(
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
		emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
		hostPathVol(
			"host",
			host,
			corev1.HostPathDirectory,
		),
		configMapVol("cfg"),
		secretVol("key"),
		downwardVol("down"),
		projectedVol("all"),
	)
	objs := objectsWith(map[string]string{"a": "1"})

	dirs, vols, err := v.Observe(t.Context(), pod)
	if err != nil || dirs || len(vols) != 0 {
		t.Fatalf("before: dirs %v, volumes %v, %v", dirs, vols, err)
	}
	must(t, v.CreateDirs(t.Context(), pod))
	must(t, v.CreateDirs(t.Context(), pod))
	for range 2 { // the second time is without effect
		for _, vol := range pod.Spec.Volumes {
			mustMount(t, v, pod, vol.Name, "v1", objs)
		}
	}
	// An agent that starts afresh sees the same, of a pod known by UID only.
	again, err := New(v.Options)
	must(t, err)
	dirs, vols, err = again.Observe(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: pod.UID}})
	if err != nil || !dirs || len(vols) != len(pod.Spec.Volumes) {
		t.Fatalf("after: dirs %v, volumes %v, %v", dirs, vols, err)
	}
	for name, seen := range vols {
		if seen.Version != "v1" {
			t.Errorf("volume %s has version %q", name, seen.Version)
		}
	}
	for path, want := range map[string]string{
		"configmap/cfg/a": "1", "secret/key/pw": "hush", "downward-api/down/name": "web", "projected/all/a": "1",
		"projected/all/pw": "hush",
	} {
		if got := read(t, filepath.Join(v.podDir(pod.UID), "volumes", "kubernetes.io~"+path)); got != want {
			t.Errorf("%s holds %q", path, got)
		}
	}
	if m := mode(t, v.volumeDir(pod.UID, secret, "key")+"/pw"); m != 0o400 {
		t.Errorf("the secret's file has mode %v", m)
	}
	for _, dir := range []string{v.volumeDir(pod.UID, secret, "key"), v.volumeDir(pod.UID, projected, "all"),
		v.volumeDir(pod.UID, emptyDir, "memory")} {
		if typ, _ := fsType(t, dir); typ != unix.TMPFS_MAGIC {
			t.Errorf("V5: %s is no tmpfs", dir)
		}
	}
	if m := mode(t, filepath.Dir(v.podDir(pod.UID))); m.Perm() != 0o750 {
		t.Errorf("pods has mode %v", m)
	}
	if n := len(mountsBelow(t, v.podDir(pod.UID))); n != 3 {
		t.Errorf("%d mounts, want 3", n)
	}

	must(t, os.WriteFile(filepath.Join(v.volumeDir(pod.UID, emptyDir, "disk"), "f"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(host, "f"), nil, 0o600))
	for range 2 {
		for _, vol := range pod.Spec.Volumes {
			must(t, v.Unmount(t.Context(), pod, vol.Name))
		}
	}
	if _, vols, err = v.Observe(t.Context(), pod); err != nil || len(vols) != 0 {
		t.Errorf("unmounted: volumes %v, %v", vols, err)
	}
	if left := mountsBelow(t, v.podDir(pod.UID)); len(left) > 0 {
		t.Errorf("left mounted: %v", left)
	}
	wantMissing(t, v.volumeDir(pod.UID, emptyDir, "disk"))
	if _, err := os.Stat(filepath.Join(host, "f")); err != nil {
		t.Error("the host's file was removed")
	}
	for range 2 {
		must(t, v.RemoveDirs(t.Context(), pod))
	}
	wantMissing(t, v.podDir(pod.UID))
	wantMissing(t, v.LogDir(pod))
	if uids, err := v.Pods(t.Context()); err != nil || len(uids) != 0 {
		t.Errorf("left: %v, %v", uids, err)
	}
}

func TestVersionMovesWithProject(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(configMapVol("cfg"))
	mustMount(t, v, pod, "cfg", "v1", objectsWith(map[string]string{"a": "1", "b": "1"}))
	must(t, v.Project(t.Context(), pod, "cfg", "v2", objectsWith(map[string]string{"a": "2", "c": "2"}), nil))
	dir := v.volumeDir(pod.UID, configMap, "cfg")
	if got := read(t, dir+"/a") + read(t, dir+"/c"); got != "22" {
		t.Errorf("content %q", got)
	}
	wantMissing(t, dir+"/b")
	_, vols, err := v.Observe(t.Context(), pod)
	if err != nil || vols["cfg"].Version != "v2" {
		t.Errorf("volumes %v, %v", vols, err)
	}
	// A failed projection leaves content and version.
	gone := plan.Objects{{Kind: plan.ConfigMap, Name: "cfg"}: {Version: plan.Version{Missing: true}}}
	err = v.Project(t.Context(), pod, "cfg", "v3", gone, nil)
	if plan.KindOf(err) != plan.NotFound || err.Error() != `configmap "cfg" not found` {
		t.Errorf("error %v", err)
	}
	if _, vols, _ = v.Observe(t.Context(), pod); vols["cfg"].Version != "v2" || read(t, dir+"/a") != "2" {
		t.Errorf("after a failure: %v", vols)
	}
}

// After a reboot mounts and unsynced content are not valid, but the files of an emptyDir are.
func TestReboot(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := newPod(
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
		emptyDirVol("memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}),
		hostPathVol("host", "/tmp", ""),
		configMapVol("cfg"),
		secretVol("key"),
	)
	objs := objectsWith(map[string]string{"a": "1"})
	for _, vol := range pod.Spec.Volumes {
		mustMount(t, v, pod, vol.Name, "v1", objs)
	}
	kept := filepath.Join(v.volumeDir(pod.UID, emptyDir, "disk"), "f")
	must(t, os.WriteFile(kept, []byte("kept"), 0o600))
	unmountBelow(t, v.podDir(pod.UID))
	torn, err := os.Readlink(v.volumeDir(pod.UID, configMap, "cfg") + "/..data")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(v.volumeDir(pod.UID, configMap, "cfg"), torn, "a"), nil, 0o644))

	v.boot = "another boot"
	_, vols, err := v.Observe(t.Context(), pod)
	if _, ok := vols["disk"]; err != nil || len(vols) != 1 || !ok {
		t.Fatalf("volumes %v, %v", vols, err)
	}
	for _, vol := range pod.Spec.Volumes {
		mustMount(t, v, pod, vol.Name, "v1", objs)
	}
	if read(t, kept) != "kept" || read(t, v.volumeDir(pod.UID, configMap, "cfg")+"/a") != "1" ||
		read(t, v.volumeDir(pod.UID, secret, "key")+"/pw") != "hush" {
		t.Error("content is not what it was")
	}
}

// A volume counts as set up only when the host agrees with the marker (V3).
func TestMarkerAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, v *Volumes, pod *corev1.Pod){
		"missing mount": func(t *testing.T, v *Volumes, pod *corev1.Pod) {
			must(t, unmount(v.volumeDir(pod.UID, secret, "key")))
		},
		"missing directory": func(t *testing.T, v *Volumes, pod *corev1.Pod) {
			must(t, unmount(v.volumeDir(pod.UID, secret, "key")))
			must(t, os.Remove(v.volumeDir(pod.UID, secret, "key")))
		},
		"the marker is torn": func(t *testing.T, v *Volumes, pod *corev1.Pod) {
			must(t, os.Truncate(v.markerDir(pod.UID, secret, "key")+"/ready", 7))
		},
		"the marker is another agent's": func(t *testing.T, v *Volumes, pod *corev1.Pod) {
			must(t, os.Truncate(v.markerDir(pod.UID, secret, "key")+"/ready", 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, pod := newVolumes(t), newPod(secretVol("key"))
			mustMount(t, v, pod, "key", "v1", objectsWith(nil))
			spoil(t, v, pod)
			if _, vols, err := v.Observe(t.Context(), pod); err != nil || len(vols) != 0 {
				t.Fatalf("volumes %v, %v", vols, err)
			}
			mustMount(t, v, pod, "key", "v1", objectsWith(nil))
			if read(t, v.volumeDir(pod.UID, secret, "key")+"/pw") != "hush" {
				t.Error("no content")
			}
			if n := len(mountsBelow(t, v.podDir(pod.UID))); n != 1 {
				t.Errorf("%d mounts, want 1", n)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	odd := newPod(
		vol("pvc", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}),
		vol("a/b", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		emptyDirVol("odd", corev1.EmptyDirVolumeSource{Medium: "Paper"}),
	)
	for name, want := range map[string]plan.ErrorKind{"pvc": plan.Unsupported, "a/b": plan.Invalid, "odd": plan.Invalid,
		"none": plan.Invalid} {
		err := v.Mount(t.Context(), odd, name, "", nil, nil)
		if e, ok := errors.AsType[*plan.Error](err); !ok || e.Kind != want || e.Reason != "FailedMount" {
			t.Errorf("mount %s: %v", name, err)
		}
	}
	for _, uid := range []string{"", ".", "..", "../../etc", ".trash-x", "a/b"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
		_, _, err := v.Observe(t.Context(), pod)
		for _, err := range []error{err, v.RemoveDirs(t.Context(), pod), v.CreateDirs(t.Context(), pod),
			v.Unmount(t.Context(), pod, "x")} {
			if plan.KindOf(err) != plan.Invalid {
				t.Errorf("UID %q: %v", uid, err)
			}
		}
	}
	if _, err := New(Options{RootDir: "relative", PodLogsDir: "/tmp"}); err == nil {
		t.Error("a relative root directory is taken")
	}
}

// A full disk returns NoSpace, and the same call succeeds when space is available.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, root) })
	must(t, unix.Mount("tmpfs", root, "tmpfs", 0, "size=256k"))
	v, err := New(Options{RootDir: filepath.Join(root, "root"), PodLogsDir: t.TempDir()})
	must(t, err)
	pod := newPod(configMapVol("cfg"))
	mustMount(t, v, pod, "cfg", "v1", objectsWith(map[string]string{"a": "old"}))
	big := objectsWith(map[string]string{"a": strings.Repeat("x", 512<<10)})
	err = v.Project(t.Context(), pod, "cfg", "v2", big, nil)
	if plan.KindOf(err) != plan.NoSpace {
		t.Fatalf("error %v of kind %d", err, plan.KindOf(err))
	}
	if read(t, v.volumeDir(pod.UID, configMap, "cfg")+"/a") != "old" {
		t.Error("the old content was removed")
	}
	must(t, unix.Mount("tmpfs", root, "tmpfs", unix.MS_REMOUNT, "size=4m"))
	must(t, v.Project(t.Context(), pod, "cfg", "v2", big, nil))
}
