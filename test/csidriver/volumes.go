package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sizeOf returns the size of a volume in its attributes. Zero: it has none.
func sizeOf(attributes map[string]string) (int64, error) {
	if attributes["size"] == "" {
		return 0, nil
	}
	return strconv.ParseInt(attributes["size"], 10, 64)
}

// mountTmpfs mounts a file system of a size at a target, or changes its size.
func mountTmpfs(target string, size int64) error {
	mounted, err := isMounted(target)
	if err != nil {
		return err
	}
	flags := uintptr(0)
	if mounted {
		flags = unix.MS_REMOUNT
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	return unix.Mount("tmpfs", target, "tmpfs", flags, fmt.Sprintf("mode=0777,size=%d", size))
}

// device is a loop device with the image of a raw block volume. It is detached when the driver exits.
type device struct {
	loop  *os.File
	image *os.File
}

// attach creates the image of a raw block volume and attaches it, unless it is attached.
func (d *driver) attach(handle string, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.devices[handle] != nil {
		return nil
	}
	image, err := os.OpenFile(filepath.Join(d.data, handle), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	fi, err := image.Stat()
	if err == nil && fi.Size() < size {
		err = image.Truncate(size)
	}
	if err != nil {
		return errors.Join(err, image.Close())
	}
	loop, err := attachLoop(image)
	if err != nil {
		return errors.Join(err, image.Close())
	}
	d.devices[handle] = &device{loop, image}
	return nil
}

// attachLoop attaches a file to a free loop device.
func attachLoop(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("get a free loop device", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		_ = loop.Close() // another process has attached it
		if !errors.Is(err, unix.EBUSY) {
			return nil, &os.PathError{Op: "attach", Path: path, Err: err}
		}
	}
}

// detach detaches the loop device of a raw block volume.
func (d *driver) detach(handle string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.devices[handle]
	if v == nil {
		return nil
	}
	delete(d.devices, handle)
	return errors.Join(v.loop.Close(), v.image.Close())
}

// resize changes the size of a raw block volume.
func (v *device) resize(size int64) error {
	if err := v.image.Truncate(size); err != nil {
		return err
	}
	return unix.IoctlSetInt(int(v.loop.Fd()), unix.LOOP_SET_CAPACITY, 0)
}

// bindFile mounts a device file at a target, which is created.
func bindFile(from, target string) error {
	if mounted, err := isMounted(target); err != nil || mounted {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// publishDevice publishes a raw block volume that is staged.
func (d *driver) publishDevice(handle, target string) error {
	d.mu.Lock()
	v := d.devices[handle]
	d.mu.Unlock()
	if v == nil {
		return status.Error(codes.FailedPrecondition, "the volume is not staged")
	}
	return bindFile(v.loop.Name(), target)
}

func (d *driver) NodeExpandVolume(
	_ context.Context, q *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	size := q.GetCapacityRange().GetRequiredBytes()
	d.mu.Lock()
	v := d.devices[q.GetVolumeId()]
	d.mu.Unlock()
	var err error
	switch {
	case q.GetVolumeCapability().GetBlock() != nil && v != nil:
		err = v.resize(size)
	case q.GetVolumeCapability().GetBlock() != nil:
		err = status.Error(codes.FailedPrecondition, "the volume is not staged")
	default:
		var st unix.Statfs_t
		if err = unix.Statfs(q.GetStagingTargetPath(), &st); err == nil && st.Type == unix.TMPFS_MAGIC {
			err = mountTmpfs(q.GetStagingTargetPath(), size)
		}
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: size}, err
}
