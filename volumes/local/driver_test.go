package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/localvolumes"
)

// newDriver returns a driver with its images in a new directory.
func newDriver(t *testing.T) *Driver {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("loop devices and mounts require root")
	}
	return New(Options{Dir: filepath.Join(t.TempDir(), "volumes"), NodeName: "n1"})
}

func mountable(flags ...string) *csipb.VolumeCapability {
	return &csipb.VolumeCapability{AccessType: &csipb.VolumeCapability_Mount{
		Mount: &csipb.VolumeCapability_MountVolume{MountFlags: flags},
	}}
}

// mounted is a volume that is staged and published. The end of the test unmounts it.
type mounted struct {
	*Driver
	t               *testing.T
	name            string
	staging, target string
	fifo            string // mounted by bindFIFO
}

func (d *Driver) mountForTest(t *testing.T, name string, flags ...string) *mounted {
	t.Helper()
	m := &mounted{Driver: d, t: t, name: name, staging: filepath.Join(t.TempDir(), "staging"),
		target: filepath.Join(t.TempDir(), "target")}
	t.Cleanup(m.unmount)
	if _, err := d.NodeStageVolume(t.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: name, StagingTargetPath: m.staging, VolumeCapability: mountable(flags...),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NodePublishVolume(t.Context(), &csipb.NodePublishVolumeRequest{
		VolumeId: name, StagingTargetPath: m.staging, TargetPath: m.target, VolumeCapability: mountable(flags...),
	}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mounted) unmount() {
	m.t.Helper()
	ctx := context.WithoutCancel(m.t.Context())
	if m.fifo != "" {
		if err := unix.Unmount(m.fifo, 0); err != nil {
			m.t.Error(err)
		}
		m.fifo = ""
	}
	if _, err := m.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{
		VolumeId: m.name, TargetPath: m.target,
	}); err != nil {
		m.t.Error(err)
	}
	if _, err := m.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{
		VolumeId: m.name, StagingTargetPath: m.staging,
	}); err != nil {
		m.t.Error(err)
	}
}

// size returns the bytes of the file system and those that can be written.
func (m *mounted) size() (total, available int64) {
	m.t.Helper()
	out, err := m.NodeGetVolumeStats(m.t.Context(), &csipb.NodeGetVolumeStatsRequest{
		VolumeId: m.name, VolumePath: m.target,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return out.GetUsage()[0].GetTotal(), out.GetUsage()[0].GetAvailable()
}

func (m *mounted) write(name string, bytes int64) error {
	f, err := os.Create(filepath.Join(m.target, name))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, bytes))
	return errors.Join(err, f.Sync(), f.Close())
}

func TestVolumeHasItsSizeAndKeepsItsData(t *testing.T) {
	d := newDriver(t)
	v, err := d.Ensure(t.Context(), "pvc-1", 40<<20)
	if err != nil || v.CapacityBytes != 40<<20 || v.Used {
		t.Fatalf("created: %+v %v", v, err)
	}
	var image unix.Stat_t
	if err := unix.Stat(d.file("pvc-1", imageName), &image); err != nil || image.Blocks*512 < 40<<20 {
		t.Errorf("image has %d bytes of blocks, %v", image.Blocks*512, err)
	}
	m := d.mountForTest(t, "pvc-1")
	total, _ := m.size()
	if total < 32<<20 || total > 40<<20 {
		t.Errorf("file system has %d bytes, want nearly 40 MiB", total)
	}
	if err := m.write("kept", 1000); err != nil {
		t.Fatal(err)
	}
	if err := m.write("large", 60<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write more than the size: %v, want ENOSPC", err)
	}
	if err := d.Delete(t.Context(), "pvc-1"); !errors.Is(err, ErrInUse) {
		t.Errorf("delete of a mounted volume: %v", err)
	}
	m.unmount()
	if device, err := loopOf(d.file("pvc-1", imageName)); err != nil || device != "" {
		t.Errorf("still attached to %s, %v", device, err)
	}
	again := d.mountForTest(t, "pvc-1")
	if data, err := os.ReadFile(filepath.Join(again.target, "kept")); err != nil || len(data) != 1000 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
	again.unmount()
	if list, err := d.List(); err != nil || len(list) != 1 || !list[0].Used {
		t.Errorf("list: %+v %v", list, err)
	}
	for range 2 {
		if err := d.Delete(t.Context(), "pvc-1"); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(d.opt.Dir); err != nil || len(entries) > 0 {
		t.Errorf("left: %v %v", entries, err)
	}
}

func TestVolumeGrowsWhileMountedAndWhenMounted(t *testing.T) {
	d := newDriver(t)
	if _, err := d.Ensure(t.Context(), "grows", 20<<20); err != nil {
		t.Fatal(err)
	}
	m := d.mountForTest(t, "grows")
	if err := m.write("kept", 8<<20); err != nil {
		t.Fatal(err)
	}
	m.bindFIFO() // opening it would block
	v, err := d.Ensure(t.Context(), "grows", 64<<20)
	if err != nil || v.CapacityBytes != 64<<20 {
		t.Fatalf("grown: %+v %v", v, err)
	}
	// The kernel grows a mounted ext4 only for a process with this capability. test/vm has a machine with it.
	if may := hasCapability(t, unix.CAP_SYS_RESOURCE); v.Pending == may {
		t.Errorf("pending %v, with CAP_SYS_RESOURCE %v", v.Pending, may)
	}
	if total, available := m.size(); !v.Pending && (total < 54<<20 || available < 40<<20) {
		t.Errorf("grown while mounted to %d bytes, %d available", total, available)
	}
	m.unmount()
	m = d.mountForTest(t, "grows")
	if total, available := m.size(); total < 54<<20 || available < 40<<20 {
		t.Errorf("grown to %d bytes, %d available", total, available)
	}
	m.unmount()
	if _, err := d.Ensure(t.Context(), "grows", 96<<20); err != nil {
		t.Fatal(err)
	}
	m = d.mountForTest(t, "grows")
	if total, _ := m.size(); total < 84<<20 {
		t.Errorf("grown at the next mount to %d bytes", total)
	}
	if v, err := d.Ensure(t.Context(), "grows", 1<<20); err != nil || v.CapacityBytes != 96<<20 {
		t.Errorf("smaller: %+v %v", v, err)
	}
	if fi, err := os.Stat(filepath.Join(m.target, "kept")); err != nil || fi.Size() != 8<<20 {
		t.Errorf("file: %v %v", fi, err)
	}
}

// bindFIFO mounts a FIFO of the volume, as a container may with a subPath.
func (m *mounted) bindFIFO() {
	m.t.Helper()
	at := filepath.Join(m.t.TempDir(), "fifo")
	if err := errors.Join(unix.Mkfifo(filepath.Join(m.target, "fifo"), 0o600), os.WriteFile(at, nil, 0o600),
		unix.Mount(filepath.Join(m.target, "fifo"), at, "", unix.MS_BIND, "")); err != nil {
		m.t.Fatal(err)
	}
	m.fifo = at
}

func hasCapability(t *testing.T, number uint) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[number/32].Effective&(1<<(number%32)) != 0
}

func TestMountOptionsAndReadOnly(t *testing.T) {
	d := newDriver(t)
	if _, err := d.Ensure(t.Context(), "opts", 16<<20); err != nil {
		t.Fatal(err)
	}
	m := d.mountForTest(t, "opts", "noatime", "commit=7")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var line string
	for l := range strings.Lines(string(table)) {
		if strings.Contains(l, " "+m.staging+" ") {
			line = l
		}
	}
	if !strings.Contains(line, "noatime") || !strings.Contains(line, "commit=7") {
		t.Errorf("mount table: %q", line)
	}
	other := filepath.Join(t.TempDir(), "ro")
	request := &csipb.NodePublishVolumeRequest{VolumeId: "opts", StagingTargetPath: m.staging, TargetPath: other,
		VolumeCapability: mountable(), Readonly: true}
	for range 2 { // a repeated call does nothing
		if _, err := d.NodePublishVolume(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(other, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only volume: %v", err)
	}
	if _, err := d.NodeUnpublishVolume(t.Context(), &csipb.NodeUnpublishVolumeRequest{
		VolumeId: "opts", TargetPath: other,
	}); err != nil {
		t.Error(err)
	}
}

// TestStagingCreatesNothing covers invariant L1, and requests that no volume can satisfy.
func TestStagingCreatesNothing(t *testing.T) {
	d := newDriver(t)
	dir := t.TempDir()
	stage := func(r *csipb.NodeStageVolumeRequest) codes.Code {
		_, err := d.NodeStageVolume(t.Context(), r)
		return status.Code(err)
	}
	block := &csipb.VolumeCapability{AccessType: &csipb.VolumeCapability_Block{
		Block: &csipb.VolumeCapability_BlockVolume{},
	}}
	xfs := &csipb.VolumeCapability{AccessType: &csipb.VolumeCapability_Mount{
		Mount: &csipb.VolumeCapability_MountVolume{FsType: "xfs"},
	}}
	for _, c := range []struct {
		name string
		r    *csipb.NodeStageVolumeRequest
		want codes.Code
	}{
		{"missing image", &csipb.NodeStageVolumeRequest{VolumeId: "lost", StagingTargetPath: dir + "/s",
			VolumeCapability: mountable()}, codes.NotFound},
		{"path in the name", &csipb.NodeStageVolumeRequest{VolumeId: "../etc", StagingTargetPath: dir + "/s",
			VolumeCapability: mountable()}, codes.InvalidArgument},
		{"no path", &csipb.NodeStageVolumeRequest{VolumeId: "a", VolumeCapability: mountable()}, codes.InvalidArgument},
		{"no capability", &csipb.NodeStageVolumeRequest{VolumeId: "a", StagingTargetPath: dir}, codes.InvalidArgument},
		{"block", &csipb.NodeStageVolumeRequest{VolumeId: "a", StagingTargetPath: dir, VolumeCapability: block},
			codes.InvalidArgument},
		{"xfs", &csipb.NodeStageVolumeRequest{VolumeId: "a", StagingTargetPath: dir, VolumeCapability: xfs},
			codes.InvalidArgument},
	} {
		if got := stage(c.r); got != c.want {
			t.Errorf("%s: got code %s, want %s", c.name, got, c.want)
		}
	}
	if _, err := os.Stat(dir + "/s"); err == nil {
		t.Error("staging target was created")
	}
	if _, err := d.NodePublishVolume(t.Context(), &csipb.NodePublishVolumeRequest{
		VolumeId: "lost", StagingTargetPath: dir, TargetPath: dir + "/t", VolumeCapability: mountable(),
	}); status.Code(err) != codes.NotFound {
		t.Errorf("publish: %v", err)
	}
}

// TestLostImageIsNotReplaced covers invariant L1 for growing, and for a volume that has been mounted.
func TestLostImageIsNotReplaced(t *testing.T) {
	d := newDriver(t)
	if _, err := d.Grow(t.Context(), "v", 32<<20); !errors.Is(err, ErrNotFound) {
		t.Errorf("grow a volume that does not exist: %v", err)
	}
	if _, err := d.Ensure(t.Context(), "v", 16<<20); err != nil {
		t.Fatal(err)
	}
	d.mountForTest(t, "v").unmount()
	if err := os.Remove(d.file("v", imageName)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Ensure(t.Context(), "v", 16<<20); !errors.Is(err, ErrNotFound) {
		t.Errorf("create a volume whose image is lost: %v", err)
	}
	if _, err := os.Stat(d.file("v", imageName)); err == nil {
		t.Error("an empty volume replaced a lost one")
	}
}

// TestInterruptedCreationIsRepeated covers invariant L3.
func TestInterruptedCreationIsRepeated(t *testing.T) {
	d := newDriver(t)
	failing := New(Options{Dir: d.opt.Dir, NodeName: "n1", Mkfs: "false"})
	if _, err := failing.Ensure(t.Context(), "v", 16<<20); err == nil || !strings.Contains(err.Error(), "false -q") {
		t.Errorf("failed mkfs: %v", err)
	}
	if entries, err := os.ReadDir(d.opt.Dir); err != nil || len(entries) > 0 {
		t.Errorf("left after an error: %v %v", entries, err)
	}
	if err := os.MkdirAll(filepath.Join(d.opt.Dir, "v"), 0o700); err != nil { // killed before the rename
		t.Fatal(err)
	}
	if err := os.WriteFile(d.file("v", newImageName), make([]byte, 99), 0o600); err != nil {
		t.Fatal(err)
	}
	// The control server deletes it if no claim needs it.
	if list, err := d.List(); err != nil || len(list) != 1 || list[0] != (Volume{Name: "v"}) {
		t.Errorf("list: %v %v", list, err)
	}
	if v, err := d.Ensure(t.Context(), "v", 16<<20); err != nil || v.CapacityBytes != 16<<20 {
		t.Errorf("repeated: %+v %v", v, err)
	}
	missing := New(Options{Dir: d.opt.Dir, NodeName: "n1", Mkfs: "mkfs.none"})
	if _, err := missing.Ensure(t.Context(), "w", 1); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without mkfs: %v", err)
	}
}

// TestSpaceIsPromisedOnce creates volumes at once that do not fit together.
func TestSpaceIsPromisedOnce(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=100m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	d := New(Options{Dir: disk, NodeName: "n1", Reserve: func(size int64) int64 { return size / 100 * 15 }})
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = d.Ensure(t.Context(), fmt.Sprint("v", i), 24<<20) })
	}
	wg.Wait()
	created := 0
	for _, err := range errs {
		if err == nil {
			created++
		} else if !errors.Is(err, ErrNoSpace) {
			t.Error(err)
		}
	}
	if created != 3 { // of 85 MiB
		t.Errorf("%d volumes of 24 MiB created on 85 MiB, want 3", created)
	}
	if _, err := d.Ensure(t.Context(), "v0", 1<<40); err == nil {
		t.Error("a volume larger than the disk was created")
	}
	if list, err := d.List(); err != nil || len(list) != created {
		t.Errorf("list: %v %v", list, err)
	}
}

func TestFree(t *testing.T) {
	for _, c := range []struct{ available, reserved, want int64 }{
		{50 << 30, 15 << 30, 35 << 30}, {15 << 30, 15 << 30, 0}, {0, 15 << 30, 0}, {2<<20 - 1, 0, 1 << 20}, {0, 0, 0},
	} {
		if got := free(c.available, c.reserved); got != c.want {
			t.Errorf("free(%d, %d) = %d, want %d", c.available, c.reserved, got, c.want)
		}
	}
	for in, want := range map[int64]int64{1: minSize, minSize: minSize, minSize + 1: minSize + unit, 1<<63 - 1: 0} {
		if got := Size(in); got != want {
			t.Errorf("Size(%d) = %d, want %d", in, got, want)
		}
	}
}

func TestHandler(t *testing.T) {
	d, enabled := newDriver(t), 0
	h := d.Handler(func() { enabled++ })
	send := func(method, path, body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{http.MethodGet, localvolumes.Path, "", 200, `"volumes":[]`},
		{http.MethodPut, localvolumes.Path + "/a", `{"capacityBytes":20000000}`, 200, `"capacityBytes":20971520`},
		{http.MethodGet, localvolumes.Path, "", 200, `"volumes":[{"name":"a","capacityBytes":20971520,"used":false}]`},
		{http.MethodPut, localvolumes.Path + "/a", `{"capacityBytes":-1}`, 400, "capacityBytes -1 must be positive"},
		{http.MethodPut, localvolumes.Path + "/a", `{"size":1}`, 400, `unknown field "size"`},
		{http.MethodPut, localvolumes.Path + "/A", `{"capacityBytes":1}`, 400, `name "A" must consist of`},
		{http.MethodPut, localvolumes.Path + "/a", `{"capacityBytes":1000000000000000}`, 507, "not enough free space"},
		{http.MethodPut, localvolumes.Path + "/a", `{"capacityBytes":20971520,"grow":true}`, 200, `"name":"a"`},
		{http.MethodDelete, localvolumes.Path + "/a", "", 200, ""},
		{http.MethodDelete, localvolumes.Path + "/a", "", 200, ""},
		{http.MethodPut, localvolumes.Path + "/a", `{"capacityBytes":1,"grow":true}`, 410, "volume not found"},
		{http.MethodPost, localvolumes.Path + "/a", "", 405, ""},
	} {
		if code, body := send(c.method, c.path, c.body); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: got %d %s, want %d %s", c.method, c.path, c.body, code, body, c.code, c.want)
		}
	}
	if enabled == 0 {
		t.Error("requests did not enable the driver")
	}
}
