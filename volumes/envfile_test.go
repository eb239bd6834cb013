package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

func TestEnvFilesStayInTheirVolume(t *testing.T) {
	t.Parallel()
	v, err := New(Options{RootDir: t.TempDir(), PodLogsDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	pod.UID = "uid"
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "h", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}},
	}
	dir := v.volumeDir(pod.UID, emptyDir, "v")
	outside := filepath.Join(t.TempDir(), "outside")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "sub", "a.env"), []byte("A='1'"), 0o600),
		os.WriteFile(filepath.Join(dir, "large"), make([]byte, maxEnvFile+1), 0o600),
		os.Symlink("sub/a.env", filepath.Join(dir, "inside")),
		os.WriteFile(outside, []byte("A='secret'"), 0o600),
		os.Symlink(outside, filepath.Join(dir, "absolute")),
		os.Symlink("../../../../../etc/passwd", filepath.Join(dir, "upwards")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &corev1.Container{Env: []corev1.EnvVar{{Name: "plain", Value: "x"}}}
	want := map[plan.EnvFile]struct {
		content, err string
		missing      bool
	}{
		{Volume: "v", Path: "sub/a.env"}:   {content: "A='1'"},
		{Volume: "v", Path: "inside"}:      {content: "A='1'"},
		{Volume: "v", Path: "gone"}:        {missing: true},
		{Volume: "v", Path: "inside/more"}: {missing: true},
		{Volume: "v", Path: "sub"}:         {err: "not a regular file"},
		{Volume: "v", Path: "fifo"}:        {err: "not a regular file"},
		{Volume: "v", Path: "large"}:       {err: "larger than"},
		{Volume: "v", Path: "absolute"}:    {err: "leads out of the volume"},
		{Volume: "v", Path: "upwards"}:     {err: "leads out of the volume"},
		{Volume: "v", Path: "../x"}:        {err: "'..'"},
		{Volume: "h", Path: "passwd"}:      {err: "no such emptyDir"},
		{Volume: "none", Path: "x"}:        {err: "no such emptyDir"},
	}
	for f := range want {
		c.Env = append(
			c.Env,
			corev1.EnvVar{
				Name: "a",
				ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: f.Volume,
					Path: f.Path}},
			},
		)
	}
	got := v.EnvFiles(pod, c)
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
	for f, w := range want {
		g := got[f]
		if g.Content != w.content || g.Missing != w.missing || (g.Err != "") != (w.err != "") ||
			!strings.Contains(g.Err, w.err) {
			t.Errorf("%+v: %+v, want %+v", f, g, w)
		}
	}
}
