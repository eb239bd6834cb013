package volumes

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/plan"
)

func TestEmptyDirModes(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := newPod(
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
		emptyDirVol(
			"memory",
			corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))},
		),
		emptyDirVol("mode", corev1.EmptyDirVolumeSource{Mode: new(int32(0o1750))}),
	)
	for name, want := range map[string]os.FileMode{"disk": 0o777, "memory": 0o777, "mode": 0o750 | os.ModeSticky} {
		mustMount(t, v, pod, name, "", nil)
		if m := mode(t, v.volumeDir(pod.UID, emptyDir, name)); m != want|os.ModeDir {
			t.Errorf("%s has mode %v, want %v", name, m, want)
		}
	}
	dir := v.volumeDir(pod.UID, emptyDir, "memory")
	if _, size := fsType(t, dir); size != 1<<20 {
		t.Errorf("size %d", size)
	}
	if err := os.WriteFile(dir+"/f", make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v from a write above the size limit", err)
	}
	// A volume in use is not changed, even for another version.
	must(t, os.Chmod(dir, 0o700))
	mustMount(t, v, pod, "memory", "other", nil)
	if _, vols, _ := v.Observe(t.Context(), pod); mode(t, dir).Perm() != 0o700 || vols["memory"].Version != "other" {
		t.Errorf("mode %v, volumes %v", mode(t, dir), vols)
	}
}

func TestMemorySize(t *testing.T) {
	t.Parallel()
	limited := newPod()
	limited.Spec.InitContainers = nil
	limited.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	half := limited.DeepCopy()
	half.Spec.Containers = append(half.Spec.Containers, corev1.Container{Name: "free"})
	node := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		limit string
		node  corev1.ResourceList
		want  int64
	}{
		"no limit is known":                        {newPod(), "", nil, 0},
		"the memory of the node is the limit":      {newPod(), "", node, 1 << 30},
		"the sizeLimit is the limit":               {newPod(), "1Mi", node, 1 << 20},
		"a sizeLimit above the memory of the node": {newPod(), "2Gi", node, 1 << 30},
		"the memory limit of the pod is the limit": {limited, "128Mi", node, 64 << 20},
		"a container without a memory limit":       {half, "", node, 1 << 30},
	} {
		src := &corev1.EmptyDirVolumeSource{}
		if tc.limit != "" {
			src.SizeLimit = new(resource.MustParse(tc.limit))
		}
		if got := memorySize(tc.pod, src, tc.node); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestHugePages(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := newPod(
		emptyDirVol("named", corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}),
		emptyDirVol("asked", corev1.EmptyDirVolumeSource{Medium: "HugePages"}),
		emptyDirVol(
			"absent",
			corev1.EmptyDirVolumeSource{Medium: "HugePages-3Mi"},
		),
		emptyDirVol("odd", corev1.EmptyDirVolumeSource{Medium: "HugePages-many"}),
	)
	err := v.Mount(t.Context(), pod, "asked", "", nil, nil)
	if plan.KindOf(err) != plan.Invalid || !strings.Contains(err.Error(), "0 huge page sizes") {
		t.Errorf("got %v without a page size, want an error", err)
	}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	for _, name := range []string{"named", "asked"} {
		mustMount(t, v, pod, name, "", nil)
		if typ, _ := fsType(t, v.volumeDir(pod.UID, emptyDir, name)); typ != unix.HUGETLBFS_MAGIC {
			t.Errorf("%s is on %x", name, typ)
		}
		must(t, v.Unmount(t.Context(), pod, name))
	}
	err = v.Mount(t.Context(), pod, "absent", "", nil, nil)
	if plan.KindOf(err) != plan.Unsupported || !strings.Contains(err.Error(), "this node has no huge pages of 3Mi") {
		t.Errorf("got %v for an unsupported page size, want an error", err)
	}
	if err = v.Mount(t.Context(), pod, "odd", "", nil, nil); plan.KindOf(err) != plan.Invalid {
		t.Errorf("got %v on a host without huge pages, want an error", err)
	}
}

func TestHostPathTypes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(at("dir"), 0o755))
	must(t, os.WriteFile(at("file"), []byte("x"), 0o600))
	must(t, os.Symlink("dir", at("link")))
	must(t, unix.Mknod(at("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))))
	l, err := net.Listen("unix", at("sock"))
	must(t, err)
	defer l.Close()
	for _, tc := range []struct {
		typ  corev1.HostPathType
		path string
		err  string // empty: no error
		kind plan.ErrorKind
	}{
		{"", at("nothing"), "", 0},
		{"Directory", at("dir"), "", 0},
		{"Directory", at("link"), "", 0},
		{"Directory", at("file"), "is not a directory", plan.Other},
		{"Directory", at("nothing"), "is not a directory: no such file", plan.Other},
		{"DirectoryOrCreate", at("new/deep"), "", 0},
		{"DirectoryOrCreate", at("dir"), "", 0},
		{"DirectoryOrCreate", at("file"), "is not a directory", plan.Other},
		{"File", at("file"), "", 0},
		{"File", at("dir"), "is not a file", plan.Other},
		{"FileOrCreate", at("made"), "", 0},
		{"FileOrCreate", at("file"), "", 0},
		{"FileOrCreate", at("no/parent"), "no such file", plan.Other},
		{"FileOrCreate", at("dir"), "is not a file", plan.Other},
		{"Socket", at("sock"), "", 0},
		{"Socket", at("file"), "is not a socket", plan.Other},
		{"CharDevice", "/dev/null", "", 0},
		{"CharDevice", at("block"), "is not a character device", plan.Other},
		{"BlockDevice", at("block"), "", 0},
		{"BlockDevice", "/dev/null", "is not a block device", plan.Other},
		{"Directory", "relative", "must be absolute", plan.Invalid},
		{"Directory", at("dir") + "/../..", "without '..'", plan.Invalid},
		{"Folder", at("dir"), `"Folder" is not supported`, plan.Invalid},
	} {
		err := checkHostPath(&corev1.HostPathVolumeSource{Path: tc.path, Type: &tc.typ})
		switch {
		case tc.err == "" && err != nil:
			t.Errorf("%s of type %q: %v", tc.path, tc.typ, err)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err) || plan.KindOf(err) != tc.kind):
			t.Errorf("%s of type %q: %v, want %q", tc.path, tc.typ, err, tc.err)
		}
	}
	if read(t, at("file")) != "x" {
		t.Error("FileOrCreate modified an existing file")
	}
	wantMissing(t, at("nothing"))
	if m := mode(t, at("new")); m.Perm() != 0o755 {
		t.Errorf("the created directory has mode %v", m)
	}
}

func TestFSGroupOfProjectedFiles(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(
		t,
	), newPod(
		secretVol("key"),
		configMapVol("cfg"),
		emptyDirVol("disk", corev1.EmptyDirVolumeSource{}),
	)
	pod.Spec.Volumes[1].ConfigMap.Items = []corev1.KeyToPath{
		{Key: "a", Path: "sub/a", Mode: new(int32(0o700)), User: new(int64(1234))},
	}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	for _, vol := range pod.Spec.Volumes {
		mustMount(t, v, pod, vol.Name, "v1", objectsWith(map[string]string{"a": "1"}))
	}
	key, cfg := v.volumeDir(pod.UID, secret, "key"), v.volumeDir(pod.UID, configMap, "cfg")
	for path, want := range map[string]os.FileMode{
		key:                                    0o777 | os.ModeDir | os.ModeSetgid,
		key + "/pw":                            0o440,
		cfg + "/sub":                           0o755 | os.ModeDir | os.ModeSetgid,
		cfg + "/sub/a":                         0o740,
		v.volumeDir(pod.UID, emptyDir, "disk"): 0o777 | os.ModeDir | os.ModeSetgid,
	} {
		file, err := filepath.EvalSymlinks(path)
		must(t, err)
		if m := mode(t, file); m != want || gid(t, file) != 4321 {
			t.Errorf("%s has mode %v and group %d, want %v and 4321", path, m, gid(t, file), want)
		}
	}
	var st unix.Stat_t
	must(t, unix.Stat(cfg+"/sub/a", &st))
	if st.Uid != 1234 {
		t.Errorf("owner %d", st.Uid)
	}
}

func TestApplyFSGroup(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	t.Cleanup(func() { unmountBelow(t, dir) })
	must(t, os.MkdirAll(dir+"/d/e", 0o700))
	must(t, os.WriteFile(dir+"/d/e/f", nil, 0o755))
	must(t, os.Chmod(dir+"/d/e/f", 0o755|os.ModeSetuid))
	must(t, os.WriteFile(outside+"/f", nil, 0o600))
	must(t, os.Symlink(outside+"/f", dir+"/link"))
	must(t, os.Mkdir(dir+"/mnt", 0o700))
	must(t, unix.Mount(outside, dir+"/mnt", "", unix.MS_BIND, ""))

	must(t, applyFSGroup(t.Context(), dir, 4321, nil))
	for path, want := range map[string]os.FileMode{
		dir: os.ModeDir | os.ModeSetgid | 0o775, dir + "/d/e": os.ModeDir | os.ModeSetgid | 0o770,
		dir + "/d/e/f": 0o775 | os.ModeSetuid,
	} {
		if m := mode(t, path); m != want || gid(t, path) != 4321 {
			t.Errorf("%s has mode %v and group %d, want %v", path, m, gid(t, path), want)
		}
	}
	if gid(t, dir+"/link") != 4321 || gid(t, outside+"/f") == 4321 || mode(t, outside+"/f") != 0o600 ||
		gid(t, outside) == 4321 {
		t.Error("V1, V2: the walk left the volume")
	}

	must(t, os.Chown(dir+"/d", -1, 0))
	must(t, applyFSGroup(t.Context(), dir, 4321, new(corev1.FSGroupChangeOnRootMismatch)))
	if gid(t, dir+"/d") != 0 {
		t.Error("fsGroupChangePolicy OnRootMismatch walked a volume with a correct root")
	}
	must(t, applyFSGroup(t.Context(), dir, 4321, new(corev1.FSGroupChangeAlways)))
	if gid(t, dir+"/d") != 4321 {
		t.Error("Always did not walk the volume")
	}
	must(t, os.Chown(dir, -1, 0))
	must(t, os.Chown(dir+"/d", -1, 0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := applyFSGroup(ctx, dir, 4321, nil); !errors.Is(err, context.Canceled) || gid(t, dir) == 4321 {
		t.Errorf("got %v after a cancellation; the root must not be changed before the walk is complete", err)
	}
	must(t, applyFSGroup(t.Context(), dir, 4321, new(corev1.FSGroupChangeOnRootMismatch)))
	if gid(t, dir+"/d") != 4321 {
		t.Error("OnRootMismatch did not complete an interrupted walk")
	}
}
