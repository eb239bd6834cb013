package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// withMounts sets the volume mounts of the pod's app container.
func withMounts(pod *corev1.Pod, mounts ...corev1.VolumeMount) (*corev1.Pod, *corev1.Container) {
	pod.Spec.Containers[0].VolumeMounts = mounts
	pod.Spec.Containers[0].TerminationMessagePath = ""
	return pod, &pod.Spec.Containers[0]
}

func sub(volume, subPath string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, MountPath: "/data", SubPath: subPath}
}

// only returns the only mount of a container.
func only(t testing.TB, v *Volumes, pod *corev1.Pod, c *corev1.Container) (plan.Mount, error) {
	t.Helper()
	mounts, err := v.ContainerMounts(t.Context(), pod, c, 0, nil, plan.Sandbox{})
	if err != nil {
		return plan.Mount{}, err
	}
	if len(mounts) != 1 {
		t.Fatalf("mounts %+v, want one", mounts)
	}
	return mounts[0], nil
}

func sameFile(t testing.TB, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	must(t, err)
	y, err := os.Stat(b)
	must(t, err)
	return os.SameFile(x, y)
}

func TestSubPathMadeLikeItsVolume(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod, c := withMounts(newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{})), sub("disk", "x/./y"))
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(4321))}
	mustMount(t, v, pod, "disk", "", nil)
	m, err := only(t, v, pod, c)
	must(t, err)
	dir := v.volumeDir(pod.UID, emptyDir, "disk")
	if want := filepath.Join(v.podDir(pod.UID), "volume-subpaths/disk/app/0"); m.HostPath != want {
		t.Errorf("mounted from %s, want %s", m.HostPath, want)
	}
	for _, p := range []string{dir + "/x", dir + "/x/y"} {
		if mode(t, p) != mode(t, dir) || gid(t, p) != 4321 {
			t.Errorf("%s has mode %v and group %d, the volume %v", p, mode(t, p), gid(t, p), mode(t, dir))
		}
	}
	if !sameFile(t, m.HostPath, dir+"/x/y") {
		t.Error("the mount has other content")
	}
	// A restarted container gets the same mount, not one on top.
	again, err := only(t, v, pod, c)
	if err != nil || again != m || len(mountsBelow(t, v.podDir(pod.UID))) != 1 {
		t.Errorf("after a restart: got %+v, %v, mounts %v", again, err, mountsBelow(t, v.podDir(pod.UID)))
	}
	must(t, v.Unmount(t.Context(), pod, "disk"))
	if left := mountsBelow(t, v.podDir(pod.UID)); len(left) > 0 {
		t.Errorf("mounts left: %v", left)
	}
	wantMissing(t, filepath.Join(v.podDir(pod.UID), "volume-subpaths/disk"))
}

func TestSubPathEscapes(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	must(t, os.WriteFile(outside+"/secret", []byte("hush"), 0o600))
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, dir string)
		sub     string
		err     string // empty: the target is inside
	}{
		"a link that stays inside is followed": {func(t *testing.T, dir string) {
			must(t, os.MkdirAll(dir+"/real/deep", 0o755))
			must(t, os.Symlink("real", dir+"/x"))
		}, "x/deep", ""},
		"a link out is rejected": {func(t *testing.T, dir string) {
			must(t, os.Symlink(outside, dir+"/x"))
		}, "x", "leads out"},
		"a link out in the middle is rejected": {func(t *testing.T, dir string) {
			must(t, os.Symlink(outside, dir+"/x"))
		}, "x/secret", "leads out"},
		"a link out in the middle creates nothing": {func(t *testing.T, dir string) {
			must(t, os.Symlink(outside, dir+"/x"))
		}, "x/made", "leads out"},
		"a relative link out is rejected": {func(t *testing.T, dir string) {
			must(t, os.Symlink("../../../../..", dir+"/x"))
		}, "x", "leads out"},
		"a link to itself is rejected": {func(t *testing.T, dir string) {
			must(t, os.Symlink("x", dir+"/x"))
		}, "x", "leads out"},
		"a dangling link is not followed to create the target": {func(t *testing.T, dir string) {
			must(t, os.Symlink("nothing", dir+"/x"))
		}, "x", "not a directory"},
		"a file in the middle is rejected": {func(t *testing.T, dir string) {
			must(t, os.WriteFile(dir+"/x", nil, 0o600))
		}, "x/y", "not a directory"},
		"an absolute path is rejected": {nil, "/etc", "must not be an absolute path"},
		"two dots are rejected":        {nil, "a/../..", "must not contain '..'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumes(t)
			pod, c := withMounts(newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{})), sub("disk", tc.sub))
			mustMount(t, v, pod, "disk", "", nil)
			if tc.prepare != nil {
				tc.prepare(t, v.volumeDir(pod.UID, emptyDir, "disk"))
			}
			_, err := only(t, v, pod, c)
			if tc.err == "" {
				must(t, err)
				return
			}
			e, ok := errors.AsType[*plan.Error](err)
			if !ok || e.Reason != "CreateContainerConfigError" || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if len(mountsBelow(t, v.podDir(pod.UID))) > 0 {
				t.Error("something is mounted")
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Error("V1: something was created outside of the volume")
			}
		})
	}
}

// A path is swapped continuously between a directory and a link out of the volume. The mounted target
// is always inside and does not change (V1).
func TestSubPathRace(t *testing.T) {
	t.Parallel()
	v, outside := newVolumes(t), t.TempDir()
	pod, c := withMounts(newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{})), sub("disk", "x/in"))
	mustMount(t, v, pod, "disk", "", nil)
	dir := v.volumeDir(pod.UID, emptyDir, "disk")
	must(t, os.Mkdir(outside+"/in", 0o755))
	must(t, os.MkdirAll(dir+"/x/in", 0o755))
	must(t, os.WriteFile(dir+"/x/in/inside", nil, 0o600))
	must(t, os.Symlink(outside, dir+"/y"))

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/x", unix.AT_FDCWD, dir+"/y", unix.RENAME_EXCHANGE)
		}
	})
	good := 0
	for try := 0; try < 500 || good == 0 && try < 100000; try++ {
		m, err := only(t, v, pod, c)
		if err != nil {
			continue
		}
		good++
		if _, err := os.Stat(m.HostPath + "/inside"); err != nil {
			t.Fatalf("try %d: the mount is outside of the volume (%v)", try, err)
		}
		must(t, unmount(m.HostPath))
	}
	if good == 0 {
		t.Error("no mount succeeded, so the test is void")
	}
}

func TestSubPathMountIsStable(t *testing.T) {
	t.Parallel()
	v, outside := newVolumes(t), t.TempDir()
	pod, c := withMounts(newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{})), sub("disk", "x"))
	mustMount(t, v, pod, "disk", "", nil)
	dir := v.volumeDir(pod.UID, emptyDir, "disk")
	m, err := only(t, v, pod, c)
	must(t, err)
	must(t, os.WriteFile(dir+"/x/inside", nil, 0o600))
	must(t, os.Rename(dir+"/x", dir+"/was"))
	must(t, os.Symlink(outside, dir+"/x"))
	if _, err := os.Stat(m.HostPath + "/inside"); err != nil {
		t.Errorf("the target of the mount changed: %v", err)
	}
	// The mount of the next instance is rejected.
	if _, err := only(t, v, pod, c); err == nil || !strings.Contains(err.Error(), "leads out") {
		t.Errorf("error %v", err)
	}
}

// A key of a projected volume has the content at the start of the instance. It is not updated in a
// running instance.
func TestSubPathOfProjectedKey(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod, c := withMounts(newPod(configMapVol("cfg")), sub("cfg", "a"))
	mustMount(t, v, pod, "cfg", "v1", objectsWith(map[string]string{"b": "1"}))
	m, err := only(t, v, pod, c)
	must(t, err)
	if !mode(t, m.HostPath).IsDir() || !m.ReadOnly {
		t.Errorf("missing key: got %+v, mode %v", m, mode(t, m.HostPath))
	}
	wantMissing(t, v.volumeDir(pod.UID, configMap, "cfg")+"/a")

	must(t, v.Project(t.Context(), pod, "cfg", "v2", objectsWith(map[string]string{"a": "2"}), nil))
	m, err = only(t, v, pod, c)
	must(t, err)
	if read(t, m.HostPath) != "2" {
		t.Errorf("got content %q", read(t, m.HostPath))
	}
	must(t, v.Project(t.Context(), pod, "cfg", "v3", objectsWith(map[string]string{"a": "3"}), nil))
	if read(t, m.HostPath) != "2" {
		t.Error("the subPath of a running container changed")
	}
	if m, err = only(t, v, pod, c); err != nil || read(t, m.HostPath) != "3" {
		t.Errorf("next instance: got %+v, %v", m, err)
	}
	if n := len(mountsBelow(t, v.podDir(pod.UID))); n != 1 {
		t.Errorf("%d mounts, want 1", n)
	}
}

func TestSubPathExpr(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	v.Env = func(_ context.Context, _ *corev1.Pod, _ *corev1.Container, _ plan.Objects,
		s plan.Sandbox) (func(string) (string, bool), error) {
		vars := map[string]string{"NAME": "web", "ROOT": "/etc", "UP": "..", "EMPTY": ""}
		return func(n string) (string, bool) { v, ok := vars[n]; return v, ok }, nil
	}
	for expr, want := range map[string]string{
		"logs/$(NAME)": "logs/web", "$$(NAME)": "$(NAME)", "plain": "plain",
		"$(ROOT)": "error: must not be an absolute path", "a/$(UP)": "error: must not contain '..'",
		"$(WHO)/$(NAME)": "error: environment has no WHO", "$(EMPTY)": ".",
	} {
		pod, c := withMounts(
			newPod(emptyDirVol("disk", corev1.EmptyDirVolumeSource{})),
			corev1.VolumeMount{Name: "disk", MountPath: "/data", SubPathExpr: expr},
		)
		mustMount(t, v, pod, "disk", "", nil)
		m, err := only(t, v, pod, c)
		if text, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), text) || plan.KindOf(err) == plan.Invalid {
				t.Errorf("%s: %v; want %q, to be retried", expr, err, text)
			}
			continue
		}
		if err != nil || !sameFile(t, m.HostPath, filepath.Join(v.volumeDir(pod.UID, emptyDir, "disk"), want)) {
			t.Errorf("%s: %+v, %v", expr, m, err)
		}
	}
}

// An absolute link in a hostPath is resolved on the host, and accepted if the target is inside. (In
// other volumes pods see different paths, so they cannot have such links.)
func TestSubPathThroughAbsoluteLinkInHostPath(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		link string // target of the link, below the root
		sub  string
		want string // below the root; empty: see err
		err  string
	}{
		"a link that leads inside is followed":                    {"ROOT/real", "current", "real", ""},
		"also in the middle, and missing directories are created": {"ROOT/real", "current/in/made", "real/in/made", ""},
		"also if the volume path contains a link":                 {"REAL/real", "current/in", "real/in", ""},
		"a link that leads out is rejected":                       {"OUT", "current", "", "leads out"},
		"and creates nothing":                                     {"OUT", "current/made", "", "leads out"},
		"a dangling link is not followed to create the target":    {"ROOT/none", "current/made", "", "leads out"},
		"a target with the volume path as prefix is rejected":     {"REALer", "current", "", "leads out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, host, out := newVolumes(t), t.TempDir(), t.TempDir()
			must(t, os.MkdirAll(host+"/vol/real/in", 0o755))
			must(t, os.Mkdir(host+"/voler", 0o755))
			must(t, os.Symlink("vol", host+"/link"))
			must(
				t,
				os.Symlink(
					strings.NewReplacer("ROOT", host+"/link", "REAL", host+"/vol", "OUT", out).Replace(tc.link),
					host+"/vol/current",
				),
			)
			pod, c := withMounts(newPod(hostPathVol("host", host+"/link", "")), sub("host", tc.sub))
			mustMount(t, v, pod, "host", "", nil)
			m, err := only(t, v, pod, c)
			switch {
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want %q", err, tc.err)
			case tc.err == "" && (err != nil || !sameFile(t, m.HostPath, host+"/vol/"+tc.want)):
				t.Errorf("%+v, %v", m, err)
			}
			if entries, _ := os.ReadDir(out); len(entries) > 0 {
				t.Error("V1: something was created outside of the volume")
			}
		})
	}
}

// A hostPath may itself be a link. Missing directories below it are created.
func TestSubPathOfHostPath(t *testing.T) {
	t.Parallel()
	v, host := newVolumes(t), t.TempDir()
	must(t, os.Mkdir(host+"/real", 0o750))
	must(t, os.Symlink("real", host+"/link"))
	pod, c := withMounts(newPod(hostPathVol("host", host+"/link", "")), sub("host", "made"))
	mustMount(t, v, pod, "host", "", nil)
	m, err := only(t, v, pod, c)
	if err != nil || !sameFile(t, m.HostPath, host+"/real/made") || mode(t, m.HostPath).Perm() != 0o750 {
		t.Fatalf("%+v, %v", m, err)
	}
	must(t, os.WriteFile(host+"/real/made/f", nil, 0o600))
	must(t, v.Unmount(t.Context(), pod, "host"))
	must(t, v.RemoveDirs(t.Context(), pod))
	if _, err := os.Stat(host + "/real/made/f"); err != nil {
		t.Error("the host's files were removed")
	}
}
