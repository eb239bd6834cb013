package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/node/pressure"
)

// TestContainerfsLayouts covers writable layers on the image file system (as containerd does), on
// nodefs (as CRI-O can do) and on a third file system. The containerfs signals are read there with the
// thresholds of nodefs by default, and pods are ranked by their usage of that file system.
func TestContainerfsLayouts(t *testing.T) {
	t.Parallel()
	disk := func(size int64) string {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		return dir
	}
	volumes, images, third := disk(1<<20), disk(2<<20), disk(4<<20)
	pod := pressure.Candidate{
		Pod:      &corev1.Pod{},
		Measured: true,
		Usage: pressure.Usage{
			Volumes: pressure.DiskUsage{Bytes: 100, Inodes: 10},
			Layers:  pressure.DiskUsage{Bytes: 1, Inodes: 2},
		},
	}
	for _, row := range []struct {
		name, containers    string
		layout              pressure.FileSystemLayout
		size                int64 // of containerfs
		exceeded            string
		nodefs, containerfs int64 // usage of the pod
	}{
		{"not reported", "", pressure.FileSystemLayout{DedicatedImageFs: true}, 2 << 20, "[nodefs.available]", 100, 1},
		{"with the images", images, pressure.FileSystemLayout{DedicatedImageFs: true}, 2 << 20, "[nodefs.available]",
			100, 1},
		{
			"with the volumes", volumes,
			pressure.FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true, ContainersOnNodefs: true},
			1 << 20,
			"[containerfs.available nodefs.available]", 101, 101,
		},
		{
			"on a third file system", third, pressure.FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true},
			4 << 20,
			"[containerfs.available nodefs.available]", 100, 1,
		},
	} {
		fs := &FileSystems{RootDir: volumes, Runtime: func(context.Context) (string, string, error) {
			return images, row.containers, nil
		}}
		r, err := fs.ReadSignals(t.Context())
		if err != nil || r.Layout != row.layout {
			t.Errorf("%s: %+v, want %+v: %v", row.name, r.Layout, row.layout, err)
		}
		if l, inodes := r.Levels[pressure.ContainerfsAvailable],
			r.Levels[pressure.ContainerfsInodesFree]; l.Capacity != row.size ||
			inodes.Capacity == 0 {
			t.Errorf("%s: %+v, %+v", row.name, l, inodes)
		}
		config := pressure.Config{
			Thresholds: []pressure.Threshold{{Signal: pressure.NodefsAvailable, Hard: true, Quantity: 1 << 30}},
		}
		_, v := config.Evaluate(pressure.State{}, r)
		var exceeded []pressure.Signal
		for _, m := range v.Reclaim {
			exceeded = append(exceeded, m.Signal)
		}
		if got := fmt.Sprint(exceeded); got != row.exceeded {
			t.Errorf("%s: %s, want %s", row.name, got, row.exceeded)
		}
		used := func(s pressure.Signal) int64 { return pressure.Rank(s, r.Layout, []pressure.Candidate{pod})[0].Used }
		if n, c := used(pressure.NodefsAvailable), used(pressure.ContainerfsAvailable); n != row.nodefs ||
			c != row.containerfs {
			t.Errorf("%s: usage %d on nodefs, %d on containerfs", row.name, n, c)
		}
		for _, s := range []pressure.Signal{pressure.ContainerfsAvailable, pressure.ContainerfsInodesFree} {
			if dir := fs.pathOf(s); !SameFileSystem(dir, cmp.Or(row.containers, images)) {
				t.Errorf("%s: %s is read at %s", row.name, s, dir)
			}
			unknown, other := func() string { return "" }, func() string { return "/proc" }
			if !fs.Covers(unknown, fs.Containers)(s) || fs.Covers(unknown)(s) || fs.Covers(other)(s) {
				t.Errorf("%s: wrong directories are covered by %s", row.name, s)
			}
		}
	}
}

func TestPullBudgetOfFileSystems(t *testing.T) {
	t.Parallel()
	dir, failed := t.TempDir(), errors.New("runtime is down")
	fs := &FileSystems{
		RootDir: dir, Log: slog.New(slog.DiscardHandler),
		Runtime: func(context.Context) (string, string, error) { return dir, "", failed },
	}
	fs.refresh(t.Context())
	if b, known := fs.PullBudget(pressure.Config{}); known {
		t.Errorf("unknown file system: got %+v", b)
	}
	failed = nil
	fs.refresh(t.Context())
	if b, known := fs.PullBudget(pressure.Config{}); !known || b.Free == 0 || b.Pressure != "" {
		t.Errorf("without thresholds: got %+v, %t", b, known)
	}
	always := pressure.Config{Thresholds: []pressure.Threshold{
		{Signal: pressure.ImagefsAvailable, Hard: true, Percent: 100},
	}}
	if b, known := fs.PullBudget(always); !known || b.Pressure == "" {
		t.Errorf("under pressure: got %+v, %t", b, known)
	}
}
