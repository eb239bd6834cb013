package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// foreignDir creates a pod directory as the kubelet does, with a file in an emptyDir and a log.
func foreignDir(t *testing.T, v *Volumes, pod *corev1.Pod) (files []string) {
	t.Helper()
	files = []string{
		filepath.Join(v.volumeDir(pod.UID, emptyDir, "data"), "file"),
		filepath.Join(v.containerDir(pod.UID, "c"), "1234abcd"),
		filepath.Join(v.LogDir(pod), "c", "0.log"),
	}
	for _, f := range files {
		must(t, os.MkdirAll(filepath.Dir(f), 0o750))
		must(t, os.WriteFile(f, []byte("foreign"), 0o600))
	}
	must(t, os.MkdirAll(v.markerDir(pod.UID, emptyDir, "data"), 0o750))
	return files
}

func TestForeignPodDirectoryIsNotChanged(t *testing.T) { // V6
	t.Parallel()
	pod := newPod(emptyDirVol("data", corev1.EmptyDirVolumeSource{}))
	calls := map[string]struct {
		call    func(context.Context, *Volumes) error
		refused bool
	}{
		"create": {func(ctx context.Context, v *Volumes) error { return v.CreateDirs(ctx, pod) }, true},
		"mount": {func(ctx context.Context, v *Volumes) error {
			return v.Mount(ctx, pod, "data", "1", plan.Objects{}, nil)
		}, true},
		"unmount": {func(ctx context.Context, v *Volumes) error { return v.Unmount(ctx, pod, "data") }, false},
		"remove":  {func(ctx context.Context, v *Volumes) error { return v.RemoveDirs(ctx, pod) }, false},
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumes(t)
			files := foreignDir(t, v, pod)
			if err := c.call(t.Context(), v); errors.Is(err, ErrForeign) != c.refused || !c.refused && err != nil {
				t.Errorf("got error %v, refused %v", err, c.refused)
			}
			for _, f := range files {
				if got := read(t, f); got != "foreign" {
					t.Errorf("%s: got %q", f, got)
				}
			}
			dirs, vols, err := v.Observe(t.Context(), pod)
			if err != nil || dirs || len(vols) > 0 {
				t.Errorf("observed %v %v %v, want nothing", dirs, vols, err)
			}
			entries, err := os.ReadDir(v.podDir(pod.UID))
			if err != nil || len(entries) != 3 { // volumes, containers, plugins
				t.Errorf("got %v %v", entries, err)
			}
		})
	}
}

func TestListPodsSeparatesForeignDirectories(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	own, removed, foreign := newPod(), newPod(), newPod()
	own.UID, removed.UID, foreign.UID = "own", "removed", "foreign"
	must(t, v.CreateDirs(t.Context(), own))
	must(t, os.Mkdir(v.podTrash(removed.UID), 0o750))
	foreignDir(t, v, foreign)
	gotOwn, gotForeign, err := ListPods(t.Context(), v.RootDir)
	slices.Sort(gotOwn)
	if err != nil || !slices.Equal(gotOwn, []types.UID{"own", "removed"}) ||
		!slices.Equal(gotForeign, []types.UID{"foreign"}) {
		t.Errorf("got %v %v %v", gotOwn, gotForeign, err)
	}
	if own, foreign, err := ListPods(t.Context(), filepath.Join(v.RootDir, "none")); err != nil ||
		len(own)+len(foreign) > 0 {
		t.Errorf("missing root directory: got %v %v %v", own, foreign, err)
	}
}

// TestCrashWhileCreatingPodDirectory has the two states between the system calls of ClaimDir: a
// directory without, and one with the mark. Neither has the name of a pod directory, and the next
// start removes both.
func TestCrashWhileCreatingPodDirectory(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	before, after := filepath.Join(v.podsDir(), newPrefix+"before"), filepath.Join(v.podsDir(), newPrefix+"after")
	must(t, os.Mkdir(before, 0o750))
	must(t, os.Mkdir(after, 0o750))
	must(t, writeOwner(after))
	must(t, v.ClaimDir("before")) // a claim of the same process completes it
	if own, foreign, err := ListPods(t.Context(), v.RootDir); err != nil || len(own) != 1 || len(foreign) > 0 {
		t.Errorf("got %v %v %v, want only the completed directory", own, foreign, err)
	}
	if _, err := New(v.Options); err != nil {
		t.Fatal(err)
	}
	wantMissing(t, after)
	if _, owned, err := v.PodDir("before"); err != nil || !owned {
		t.Errorf("got owned %v %v", owned, err)
	}
}

func TestClaimDirConcurrently(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	errs := make(chan error)
	for range 16 {
		go func() { errs <- v.ClaimDir("uid") }()
	}
	for range 16 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(v.podsDir())
	if err != nil || len(entries) != 1 {
		t.Errorf("got %v %v", entries, err)
	}
}

func TestMarkDirAdoptsDirectory(t *testing.T) {
	t.Parallel()
	v, pod := newVolumes(t), newPod(emptyDirVol("data", corev1.EmptyDirVolumeSource{}))
	files := foreignDir(t, v, pod)
	must(t, v.MarkDir(pod.UID))
	must(t, v.MarkDir("missing"))
	wantMissing(t, v.podDir("missing"))
	must(t, v.ClaimDir(pod.UID))
	must(t, v.RemoveDirs(t.Context(), pod))
	for _, f := range files {
		wantMissing(t, f)
	}
	wantMissing(t, v.podDir(pod.UID))
}

func TestUnmarkDirRemovesOnlyTheMark(t *testing.T) {
	t.Parallel()
	v, own, foreign := newVolumes(t), newPod(), newPod()
	own.UID, foreign.UID = "own", "foreign"
	must(t, v.CreateDirs(t.Context(), own))
	data := filepath.Join(v.podDir(own.UID), "data")
	must(t, os.WriteFile(data, nil, 0o600))
	files := foreignDir(t, v, foreign)
	for range 2 { // it can be repeated
		must(t, v.UnmarkDir(own.UID))
		must(t, v.UnmarkDir(foreign.UID))
		for _, f := range append(files, data) {
			if _, err := os.Stat(f); err != nil {
				t.Error(err)
			}
		}
		if own, foreign, err := ListPods(t.Context(), v.RootDir); err != nil || len(own) > 0 || len(foreign) != 2 {
			t.Errorf("got own pods %v, foreign pods %v, error %v", own, foreign, err)
		}
	}
}
