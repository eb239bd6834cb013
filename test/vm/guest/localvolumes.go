package main

import (
	"os"
	"path/filepath"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"berth/volumes/local"
)

// localVolumes checks that a mounted volume of the class local grows: that needs the capability CAP_SYS_RESOURCE, which
// the agent of a service has.
func localVolumes(t *testing.T) {
	const name, before, after = "grows", 32 << 20, 96 << 20
	d := local.New(local.Options{Dir: "/var/lib/kubelet/local-volumes", NodeName: "vm"})
	if _, err := d.Ensure(t.Context(), name, before); err != nil {
		t.Fatal(err)
	}
	staging := filepath.Join(t.TempDir(), "staging")
	if _, err := d.NodeStageVolume(t.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: name, StagingTargetPath: staging, VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(staging, "open"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := d.Ensure(t.Context(), name, after)
	if err != nil || v.Pending || v.CapacityBytes != after {
		t.Errorf("grown: %+v, %v", v, err)
	}
	if _, err := file.Write(make([]byte, before*3/2)); err != nil { // more than the volume had
		t.Errorf("write to the file that was open before: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(staging, &s); err != nil || int64(s.Blocks)*s.Bsize < after*4/5 {
		t.Errorf("file system has %d bytes, %v", int64(s.Blocks)*s.Bsize, err)
	}
	if _, err := d.NodeUnstageVolume(t.Context(), &csipb.NodeUnstageVolumeRequest{
		VolumeId: name, StagingTargetPath: staging,
	}); err != nil {
		t.Error(err)
	}
	if err := d.Delete(t.Context(), name); err != nil {
		t.Error(err)
	}
	if err := os.Remove("/var/lib/kubelet/local-volumes"); err != nil {
		t.Error(err)
	}
}
