package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/localvolumes"
	"berth/volumes/keylock"
)

// Version is the version of the CSI specification.
const Version = "1.13.0"

// Options configures a Driver. Dir and NodeName are required.
type Options struct {
	Dir      string // of the images; absolute
	NodeName string
	Mkfs     string // program that makes an ext4; empty: mkfs.ext4
	Log      *slog.Logger
	// Reserve returns the bytes that stay free on the file system of the images, by its size, so that volumes do not
	// cause DiskPressure. Nil: none.
	Reserve func(size int64) int64
}

// Driver is the driver of one node: its volumes, and the node service of CSI. It is safe for concurrent use.
type Driver struct {
	opt   Options
	locks keylock.Locks[string] // by volume
	space sync.Mutex            // held while space is allocated

	preallocates atomic.Bool // the file system of the images can preallocate files
}

// New returns a Driver. It changes nothing on the host.
func New(o Options) *Driver {
	o.Mkfs = cmp.Or(o.Mkfs, "mkfs.ext4")
	if o.Reserve == nil {
		o.Reserve = func(int64) int64 { return 0 }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{opt: o}
}

// The methods below are the node service. The agent calls them directly, as a client without a connection.
var _ csipb.NodeClient = (*Driver)(nil)

// NodeGetInfo returns the name and the topology of the node.
func (d *Driver) NodeGetInfo(
	context.Context, *csipb.NodeGetInfoRequest, ...grpc.CallOption,
) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.opt.NodeName, AccessibleTopology: &csipb.Topology{
		Segments: map[string]string{localvolumes.TopologyKey: d.opt.NodeName},
	}}, nil
}

// NodeGetCapabilities returns what the node service supports.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest, ...grpc.CallOption,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

// failed returns an error with a code of gRPC.
func failed(err error) error {
	code := codes.Internal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, ErrNoSpace):
		code = codes.ResourceExhausted
	case errors.Is(err, ErrInUse), errors.Is(err, ErrUnsupported):
		code = codes.FailedPrecondition
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}

// checkCapability returns an error unless a volume with this capability is an ext4 that is mounted.
func checkCapability(c *csipb.VolumeCapability) error {
	switch {
	case c == nil:
		return fmt.Errorf("%w: no volume capability", ErrInvalid)
	case c.GetBlock() != nil:
		return fmt.Errorf("%w: raw block volumes are not supported by %s", ErrInvalid, localvolumes.DriverName)
	case c.GetMount().GetFsType() != "" && c.GetMount().GetFsType() != localvolumes.FSType:
		return fmt.Errorf("%w: file system %s is not supported by %s, only %s", ErrInvalid, c.GetMount().GetFsType(),
			localvolumes.DriverName, localvolumes.FSType)
	}
	return nil
}

// NodeStageVolume mounts a volume.
func (d *Driver) NodeStageVolume(
	ctx context.Context, r *csipb.NodeStageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeStageVolumeResponse, error) {
	if r.GetStagingTargetPath() == "" {
		return nil, failed(fmt.Errorf("%w: no staging target path", ErrInvalid))
	}
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, failed(err)
	}
	options := r.GetVolumeCapability().GetMount().GetMountFlags()
	if err := d.stage(ctx, r.GetVolumeId(), r.GetStagingTargetPath(), options); err != nil {
		return nil, failed(err)
	}
	return &csipb.NodeStageVolumeResponse{}, nil
}

func (d *Driver) stage(ctx context.Context, name, target string, options []string) error {
	if err := checkName(name); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := d.get(name); err != nil {
		return err
	}
	device, err := mountAt(target)
	if err != nil {
		return err
	}
	if device != "" {
		return nil
	}
	return d.mount(ctx, name, target, options)
}

// mount mounts an image. The caller holds the lock of the volume.
func (d *Driver) mount(ctx context.Context, name, target string, options []string) error {
	image := d.file(name, imageName)
	if err := markUsed(d.file(name, usedName)); err != nil {
		return err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	pending, err := d.mountAndGrow(name, target, options)
	if err != nil || !pending {
		return err
	}
	// Without CAP_SYS_RESOURCE, only a file system that is not mounted can grow.
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "unmount", Path: target, Err: err}
	}
	if device, err := loopOf(image); err != nil || device != "" {
		// Another mount namespace has it mounted. It grows later.
		_, mountErr := d.mountAndGrow(name, target, options)
		return errors.Join(err, mountErr)
	}
	if err := growImage(ctx, image); err != nil {
		return err
	}
	_, err = d.mountAndGrow(name, target, options)
	return err
}

// mountAndGrow mounts an image and grows its file system to the size of the image. pending: it cannot grow while it is
// mounted.
func (d *Driver) mountAndGrow(name, target string, options []string) (pending bool, err error) {
	image := d.file(name, imageName)
	if err := allocateAgain(image); err != nil {
		return false, err
	}
	loop, err := openLoop(image)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()
	// Inode tables are complete. To write them again would free their blocks.
	flags, data := splitOptions(append([]string{"noinit_itable"}, options...))
	if err := unix.Mount(loop.Name(), target, localvolumes.FSType, flags, data); err != nil {
		return false, fmt.Errorf("mount local volume %s at %s: %w", name, target, err)
	}
	keepAllocated(loop.Name())
	if flags&unix.MS_RDONLY != 0 {
		return false, nil
	}
	return d.growMounted(name)
}

// markUsed creates a file. It is on disk before the volume can have data.
func markUsed(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close(), syncDir(filepath.Dir(path)))
}

// unmount unmounts what is mounted at a path and removes the directory.
func unmount(path string) error {
	if path == "" {
		return fmt.Errorf("%w: no target path", ErrInvalid)
	}
	source, err := mountAt(path)
	if err != nil {
		return err
	}
	if source != "" {
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
			return &fs.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// NodeUnstageVolume unmounts a volume. The kernel then detaches its loop device.
func (d *Driver) NodeUnstageVolume(
	ctx context.Context, r *csipb.NodeUnstageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnstageVolumeResponse, error) {
	unlock, err := d.locks.Lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, failed(err)
	}
	defer unlock()
	if err := unmount(r.GetStagingTargetPath()); err != nil {
		return nil, failed(err)
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume mounts a staged volume for a pod.
func (d *Driver) NodePublishVolume(
	ctx context.Context, r *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodePublishVolumeResponse, error) {
	if r.GetStagingTargetPath() == "" || r.GetTargetPath() == "" {
		return nil, failed(fmt.Errorf("%w: no target path", ErrInvalid))
	}
	if err := checkCapability(r.GetVolumeCapability()); err != nil {
		return nil, failed(err)
	}
	if err := d.publish(ctx, r); err != nil {
		return nil, failed(err)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(ctx context.Context, r *csipb.NodePublishVolumeRequest) error {
	target := r.GetTargetPath()
	unlock, err := d.locks.Lock(ctx, r.GetVolumeId())
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := d.get(r.GetVolumeId()); err != nil {
		return err
	}
	source, err := mountAt(r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	if source == "" { // else the bind mount would show the host's directory
		return fmt.Errorf("local volume %s is not mounted at %s", r.GetVolumeId(), r.GetStagingTargetPath())
	}
	if published, err := mountAt(target); err != nil || published != "" && !r.GetReadonly() {
		return err
	} else if published == "" {
		if err := os.MkdirAll(target, 0o750); err != nil {
			return err
		}
		if err := unix.Mount(r.GetStagingTargetPath(), target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount local volume %s at %s: %w", r.GetVolumeId(), target, err)
		}
	}
	if r.GetReadonly() {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("mount local volume %s read-only at %s: %w", r.GetVolumeId(), target, err)
		}
	}
	return nil
}

// NodeUnpublishVolume unmounts a volume of a pod.
func (d *Driver) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	unlock, err := d.locks.Lock(ctx, r.GetVolumeId())
	if err != nil {
		return nil, failed(err)
	}
	defer unlock()
	if err := unmount(r.GetTargetPath()); err != nil {
		return nil, failed(err)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats returns the usage of a mounted volume.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, r *csipb.NodeGetVolumeStatsRequest, _ ...grpc.CallOption,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumePath() == "" {
		return nil, failed(fmt.Errorf("%w: no volume path", ErrInvalid))
	}
	if _, err := d.get(r.GetVolumeId()); err != nil {
		return nil, failed(err)
	}
	source, err := mountAt(r.GetVolumePath())
	if err == nil && source == "" {
		err = fmt.Errorf("%w: nothing is mounted at %s", ErrNotFound, r.GetVolumePath())
	}
	if err != nil {
		return nil, failed(err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(r.GetVolumePath(), &s); err != nil {
		return nil, failed(&fs.PathError{Op: "statfs", Path: r.GetVolumePath(), Err: err})
	}
	block := s.Bsize
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{
		Unit: csipb.VolumeUsage_BYTES, Total: int64(s.Blocks) * block, Available: int64(s.Bavail) * block,
		Used: int64(s.Blocks-s.Bfree) * block,
	}, {
		Unit: csipb.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree),
		Used: int64(s.Files - s.Ffree),
	}}}, nil
}

// NodeExpandVolume is not supported: Ensure grows the file system of a mounted volume, and NodeStageVolume that of
// another one.
func (d *Driver) NodeExpandVolume(
	context.Context, *csipb.NodeExpandVolumeRequest, ...grpc.CallOption,
) (*csipb.NodeExpandVolumeResponse, error) {
	return nil, status.Error(codes.Unimplemented, "local volumes grow when their capacity is changed")
}

// NodeGetVolumeHealth is not supported.
func (d *Driver) NodeGetVolumeHealth(
	context.Context, *csipb.NodeGetVolumeHealthRequest, ...grpc.CallOption,
) (*csipb.NodeGetVolumeHealthResponse, error) {
	return nil, status.Error(codes.Unimplemented, "local volumes report no health")
}

// NodeGetStorageHealth is not supported.
func (d *Driver) NodeGetStorageHealth(
	context.Context, *csipb.NodeGetStorageHealthRequest, ...grpc.CallOption,
) (*csipb.NodeGetStorageHealthResponse, error) {
	return nil, status.Error(codes.Unimplemented, "local volumes report no health")
}
