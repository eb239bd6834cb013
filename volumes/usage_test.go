package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limited returns an emptyDir on disk with a sizeLimit.
func limited(name, limit string) corev1.Volume {
	return emptyDirVol(name, corev1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse(limit))})
}

func TestExceededSizeLimit(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	pod := newPod(
		emptyDirVol("free", corev1.EmptyDirVolumeSource{}),
		limited("none", "0"),
		limited("small", "1Mi"),
		limited("data", "5Mi"),
		limited("absent", "1Ki"),
	)
	for _, name := range []string{"free", "none", "small", "data"} {
		mustMount(t, v, pod, name, "", nil)
	}
	write := func(name string, size int) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(v.volumeDir(pod.UID, emptyDir, name), "f"), make([]byte, size), 0o600))
	}
	write("free", 8<<20)
	write("none", 8<<20)
	write("data", 4<<20)
	if over, err := v.ExceededSizeLimit(t.Context(), pod); err != nil || over != nil {
		t.Fatalf("within its limits: %+v, %v", over, err)
	}
	if bytes, inodes, err := v.DiskUsage(t.Context(), pod); err != nil || bytes < 20<<20 || bytes > 21<<20 ||
		inodes < 6 ||
		inodes > 60 {
		t.Errorf("the pod has %d bytes, %d inodes: %v", bytes, inodes, err)
	}
	write("data", 6<<20)
	over, err := v.ExceededSizeLimit(t.Context(), pod)
	if err != nil || over == nil || over.Signal != "emptydirfs.limit" ||
		over.Message != `Usage of EmptyDir volume "data" exceeds the limit "5Mi". ` {
		t.Fatalf("over its limit: %+v, %v", over, err)
	}
}

// used measures a directory without a limit.
func used(t *testing.T, dir string) int64 {
	t.Helper()
	n, err := usedBelow(t.Context(), dir, 1<<62)
	must(t, err)
	return n
}

func TestUsageCountsBlocksOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if n := used(t, dir+"/absent"); n != 0 {
		t.Errorf("got usage %d of an empty directory", n)
	}
	empty := used(t, dir)
	must(t, os.WriteFile(dir+"/a", make([]byte, 1<<20), 0o600))
	one := used(t, dir)
	if one < empty+1<<20 || one > empty+1<<20+64<<10 {
		t.Fatalf("got usage %d of 1 MiB, %d of an empty directory", one, empty)
	}
	must(t, os.Link(dir+"/a", dir+"/b"))
	if n := used(t, dir); n != one {
		t.Errorf("got usage %d with two hard links, %d with one", n, one)
	}
	must(t, os.Symlink("/usr", dir+"/link"))
	f, err := os.Create(dir + "/hole")
	must(t, err)
	must(t, errors.Join(f.Truncate(1<<30), f.Close()))
	if n := used(t, dir); n > one+64<<10 {
		t.Errorf("got usage %d of a hole and a symbolic link", n-one)
	}
}

// Other volumes are omitted.
func TestUsageOfVolumesThatAreSetUp(t *testing.T) {
	t.Parallel()
	v := newVolumes(t)
	host := corev1.Volume{
		Name:         "host",
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: t.TempDir()}},
	}
	pod := newPod(
		emptyDirVol("data", corev1.EmptyDirVolumeSource{}),
		emptyDirVol("absent", corev1.EmptyDirVolumeSource{}),
		host,
	)
	mustMount(t, v, pod, "data", "", nil)
	mustMount(t, v, pod, "host", "", nil)
	dir := v.volumeDir(pod.UID, emptyDir, "data")
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "d", "f"), make([]byte, 1<<20), 0o600))
	must(t, os.Link(filepath.Join(dir, "d", "f"), filepath.Join(dir, "same")))
	all, err := v.Usage(t.Context(), pod)
	if err != nil || len(all) != 1 || all[0].Volume != "data" || all[0].Dir != dir || all[0].Bytes < 1<<20 ||
		all[0].Bytes > 2<<20 ||
		all[0].Inodes != 3 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestUsageExcludesMounts(t *testing.T) {
	t.Parallel()
	v, outside := newVolumes(t), t.TempDir()
	must(t, os.WriteFile(outside+"/big", make([]byte, 4<<20), 0o600))
	pod := newPod(limited("data", "1Mi"))
	mustMount(t, v, pod, "data", "", nil)
	dir := v.volumeDir(pod.UID, emptyDir, "data")
	must(t, os.Mkdir(dir+"/mnt", 0o700))
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	must(t, unix.Mount(outside, dir+"/mnt", "", unix.MS_BIND, "")) // on the same file system
	must(t, unix.Mount(outside+"/big", dir+"/file", "", unix.MS_BIND, ""))
	if over, err := v.ExceededSizeLimit(t.Context(), pod); err != nil || over != nil {
		t.Errorf("a mount inside the volume was counted: %+v, %v", over, err)
	}
}

func TestUsageReachesTheDeepestDirectory(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	fd, err := unix.Open(top, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 200)
	for range 60 { // 12,000 bytes: exceeds the maximum path length
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, errors.Join(err, unix.Close(fd)))
		fd = next
	}
	f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	must(t, err)
	_, err = unix.Write(f, make([]byte, 1<<20))
	must(t, errors.Join(err, unix.Close(f), unix.Close(fd)))
	if n := used(t, top); n < 1<<20 {
		t.Errorf("%d: the deepest file was not counted", n)
	}
	must(t, removeTree(t.Context(), top)) // the cleanup of the test may fail for such paths
}

// The result does not depend on the budget.
func TestUsageExceedingPendingBudget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 12 {
		for j := range 12 {
			at := fmt.Sprintf("%s/%d/%d/x/y", dir, i, j)
			must(t, os.MkdirAll(at, 0o700))
			must(t, os.WriteFile(at+"/f", make([]byte, 8<<10), 0o600))
		}
	}
	root, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(root)
	walked := func(budget int, most int64) (usage, error) {
		u := usage{root: root, pendingBudget: budget, most: most, todo: []string{"."}}
		err := u.walk(t.Context())
		return u, err
	}
	all, err := walked(maxPending, 1<<40)
	if want := float64(12 + 12*12*4); err != nil || all.inodes != want {
		t.Fatalf("%v inodes of %v: %v", all.inodes, want, err)
	}
	for _, budget := range []int{0, 8, 40, 200} {
		if u, err := walked(budget, 1<<40); err != nil || u.used != all.used || u.inodes != all.inodes {
			t.Errorf(
				"budget for %d: %d bytes and %v inodes, want %d and %v: %v",
				budget,
				u.used,
				u.inodes,
				all.used,
				all.inodes,
				err,
			)
		}
		if u, err := walked(budget, 64<<10); err != nil || u.used <= 64<<10 || u.used > all.used/2 {
			t.Errorf("budget %d: the walk continued to %d of %d: %v", budget, u.used, all.used, err)
		}
	}
	must(t, os.MkdirAll(dir+strings.Repeat("/d", maxWalkDepth+10), 0o700))
	if u, err := walked(8, 1<<40); err != nil || u.inodes != all.inodes+maxWalkDepth+10 {
		t.Errorf("%v inodes: %v", u.inodes, err)
	}
	for i := range maxWalkDepth + 10 { // each with another directory next to it
		must(t, os.Mkdir(dir+strings.Repeat("/d", i)+"/e", 0o700))
	}
	if _, err := walked(-1, 1<<40); err == nil {
		t.Error("the depth of nested walks is not limited")
	}
}

func TestUsageStopsAtLimitAndCancellation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 50 {
		must(t, os.Mkdir(dir+"/"+strconv.Itoa(i), 0o700))
		must(t, os.WriteFile(dir+"/"+strconv.Itoa(i)+"/f", make([]byte, 64<<10), 0o600))
	}
	if all, some := used(t, dir), int64(200<<10); all < 50*64<<10 {
		t.Errorf("%d", all)
	} else if n, err := usedBelow(t.Context(), dir, some); err != nil || n <= some || n >= all {
		t.Errorf("the walk continued to %d of %d: %v", n, all, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := usedBelow(ctx, dir, 1<<40); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after a cancellation", err)
	}
}

// A pod runs while it is measured: its files and directories disappear and are replaced.
func TestUsageOfChangingTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			at := filepath.Join(dir, strconv.Itoa(i%20))
			_ = os.RemoveAll(at)
			switch i % 4 {
			case 0:
				_ = os.Symlink("/", at)
			case 1:
				_ = unix.Mkfifo(at, 0o600)
			default:
				_ = os.MkdirAll(at+"/x/y", 0o700)
				_ = os.WriteFile(at+"/x/f", []byte("x"), 0o600)
			}
		}
	})
	for range 300 {
		if n := used(t, dir); n > 1<<20 {
			t.Fatalf("%d bytes: the walk left the tree", n)
		}
	}
}
