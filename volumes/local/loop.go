package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/volumes/mountinfo"
)

const loopControl = "/dev/loop-control"

// maxLoopAttempts limits how often another process may take a free loop device first.
const maxLoopAttempts = 64

// openLoop opens the loop device of an image, to which it is attached if it is not: another mount namespace may still
// have it mounted. The kernel detaches it when the returned file is closed and no file system of the device is mounted.
func openLoop(image string) (*os.File, error) {
	device, err := loopOf(image)
	if err != nil {
		return nil, err
	}
	if device != "" {
		return os.OpenFile(device, os.O_RDWR, 0)
	}
	return attach(image)
}

// attach attaches an image to a loop device.
func attach(image string) (*os.File, error) {
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices: %w", err)
	}
	defer control.Close()
	for range maxLoopAttempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("loop device: %w", err)
		}
		// Without direct I/O, all data would be in the page cache twice.
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Size: blockSize, Info: unix.LoopInfo64{
			Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO,
		}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if errors.Is(err, unix.EINVAL) { // the file system of the image supports no direct I/O
			config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
			err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		}
		if err == nil {
			return device, nil
		}
		_ = device.Close() // nothing is written
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to a loop device: %w", image, err)
		}
	}
	return nil, fmt.Errorf("attach %s: no free loop device", image)
}

// keepAllocated turns off what frees blocks of the image of a mounted file system: discards, and requests of ext4 to
// write zeroes. Not every kernel has these settings. What is freed all the same is allocated again when the volume is
// next mounted.
func keepAllocated(device string) {
	name := filepath.Base(device)
	for _, setting := range []string{
		"/sys/block/" + name + "/queue/discard_max_bytes", "/sys/block/" + name + "/queue/write_zeroes_unmap_max_bytes",
		"/sys/fs/ext4/" + name + "/extent_max_zeroout_kb",
	} {
		_ = os.WriteFile(setting, []byte("0"), 0) // see above
	}
}

// loopOf returns the loop device that a file is attached to, or "".
func loopOf(image string) (string, error) {
	image, err := filepath.EvalSymlinks(image)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.TrimSuffix(string(text), "\n") == image {
			return "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file))), nil
		}
	}
	return "", nil
}

// mountOf returns a directory where the file system of a device is mounted for writing, or "". Mounts of directories and
// files in it do not count: containers control what they are.
func mountOf(device string) (string, error) {
	m, _, err := mountinfo.Find(func(m mountinfo.Mount) bool {
		return m.Source == device && m.Root == "/" && !slices.Contains(m.Options, "ro")
	})
	return m.Point, err
}

// mountAt returns the source of the mount at a path, or "".
func mountAt(path string) (string, error) {
	m, _, err := mountinfo.At(path)
	return m.Source, err
}

// resizeFileSystem is EXT4_IOC_RESIZE_FS: _IOW('f', 16, __u64).
const resizeFileSystem = 0x40086610

// growFileSystem enlarges the ext4 of a loop device, mounted at dir, to the size of the image.
func growFileSystem(device, dir string) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	if _, err := unix.IoctlRetInt(int(loop.Fd()), unix.LOOP_SET_CAPACITY); err != nil {
		return fmt.Errorf("set capacity of %s: %w", device, err)
	}
	size, err := loop.Seek(0, 2)
	if err != nil {
		return err
	}
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	blocks := uint64(size) / blockSize
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFileSystem, uintptr(unsafe.Pointer(&blocks)))
	if errno != 0 {
		return fmt.Errorf("grow the file system of %s to %d blocks: %w", device, blocks, errno)
	}
	return nil
}
