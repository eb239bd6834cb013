package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/cri"
	"berth/cri/crifake"
	"berth/internal/nodeconfig"
	"berth/node"
	"berth/node/pressure"
)

func TestEvictionThresholdsFromConfiguration(t *testing.T) {
	t.Parallel()
	const kubelet, own = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
		"KubeletConfiguration\n", "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"
	for _, row := range []struct{ config, want string }{
		{kubelet + "evictionHard: {memory.available: 100Mi, nodefs.available: 10%}",
			"[{memory.available true 104857600 0 0s 0 0} {nodefs.available true 0 10 0s 0 0} " +
				"{allocatableMemory.available true 104857600 0 0s 0 0}] 5m0s false"},
		{
			kubelet + "evictionHard: {memory.available: 100Mi}\nenforceNodeAllocatable: [none]",
			"[{memory.available true 104857600 0 0s 0 0}] 5m0s false",
		},
		{kubelet + "evictionHard: {memory.available: 1Gi, allocatableMemory.available: " +
			"1Mi}\nevictionPressureTransitionPeriod: 30s\n" + own + "memoryPressureSources: workingSet",
			"[{allocatableMemory.available true 1048576 0 0s 0 0} {memory.available true 1073741824 0 0s 0 " +
				"0}] 30s true"},
		{kubelet + "evictionHard: {}\nevictionSoft: {pid.available: 5%}\nevictionSoftGracePeriod: {pid.available: " +
			"90s}\nevictionMinimumReclaim: {pid.available: \"10\"}",
			"[{pid.available false 0 5 1m30s 10 0}] 5m0s false"},
	} {
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(file, []byte(row.config), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := nodeconfig.Load(&nodeconfig.Flags{Config: file, HostnameOverride: "n"})
		if err != nil {
			t.Fatal(err)
		}
		p := pressureConfig(c)
		if got := fmt.Sprint(p.Thresholds, p.TransitionPeriod, p.WorkingSetOnly); got != row.want {
			t.Errorf("%s\ngot  %s\nwant %s", row.config, got, row.want)
		}
	}
}

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
		fake := crifake.New(crifake.Options{ImageFilesystem: images, ContainerFilesystem: row.containers})
		client, err := cri.Dial(t.Context(), cri.Options{Conn: fake.Conn()})
		if err != nil {
			t.Fatal(err)
		}
		fs := &filesystems{b: &berth{config: &nodeconfig.Config{RootDir: volumes}, runtime: &runtime{client: client}}}
		fs.refresh(t.Context())
		r, err := node.ReadSignals(time.Now(), fs.sources(nil))
		fake.Close()
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
			if dir := fs.pathOf(s); !node.SameFileSystem(dir, cmp.Or(row.containers, images)) {
				t.Errorf("%s: %s is read at %s", row.name, s, dir)
			}
		}
	}
}
