package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/localvolumes"
)

// Names of the files of a volume.
const (
	imageName    = "image"
	newImageName = "image.new" // not complete
	usedName     = "used"
)

const (
	blockSize = 4096
	// unit is what sizes are rounded up to, in bytes.
	unit = 1 << 20
	// minSize is the smallest size of a volume, in bytes: a smaller ext4 has no journal.
	minSize = 16 << 20
)

// Errors of the functions of Driver.
var (
	ErrInvalid     = errors.New("invalid volume")
	ErrNotFound    = errors.New("volume not found")
	ErrInUse       = errors.New("volume in use")
	ErrNoSpace     = errors.New("not enough free space")
	ErrUnsupported = errors.New("local volumes not supported on this node")
)

// Volume is a volume of the node.
type Volume = localvolumes.Volume

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func checkName(name string) error {
	if !validName.MatchString(name) || strings.Contains(name, "..") {
		return fmt.Errorf("%w: name %q must consist of lower case letters, digits, '-' and '.'", ErrInvalid, name)
	}
	return nil
}

// Size returns the size of a volume for a requested size, in bytes. It is zero if no volume can be that large.
func Size(requested int64) int64 {
	if requested > 1<<62 {
		return 0
	}
	return max(minSize, (requested+unit-1)/unit*unit)
}

// free returns the bytes that new volumes can have, of a file system with that many available bytes.
func free(available, reserved int64) int64 { return max(0, available-reserved) / unit * unit }

// Available returns the bytes that new volumes can have in total.
func (d *Driver) Available() (int64, error) {
	if err := os.MkdirAll(d.opt.Dir, 0o700); err != nil {
		return 0, fmt.Errorf("directory of local volumes: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(d.opt.Dir, &s); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: d.opt.Dir, Err: err}
	}
	size, available := int64(s.Blocks)*s.Bsize, int64(s.Bavail)*s.Bsize //nolint:gosec // below 2^63
	return free(available, d.opt.Reserve(size)), nil
}

// Supported returns an error that wraps ErrUnsupported if the host lacks what volumes need. It loads the kernel module
// of loop devices if they are missing.
func (d *Driver) Supported(ctx context.Context) error {
	if _, err := exec.LookPath(d.opt.Mkfs); err != nil {
		return fmt.Errorf("%w: program %s not found; install e2fsprogs", ErrUnsupported, d.opt.Mkfs)
	}
	if _, err := os.Stat(loopControl); err != nil {
		if err := runTool(ctx, 0, "modprobe", "loop"); err != nil {
			return fmt.Errorf("%w: no loop devices: %w", ErrUnsupported, err)
		}
	}
	if d.preallocates.Load() {
		return nil
	}
	if err := os.MkdirAll(d.opt.Dir, 0o700); err != nil {
		return fmt.Errorf("directory of local volumes: %w", err)
	}
	f, err := os.CreateTemp(d.opt.Dir, ".probe-*")
	if err != nil {
		return err
	}
	// Removed first: a kill leaves nothing.
	err = errors.Join(os.Remove(f.Name()), fallocate(f, 0, blockSize), f.Close())
	d.preallocates.Store(err == nil)
	return err
}

func (d *Driver) file(name, file string) string { return filepath.Join(d.opt.Dir, name, file) }

// get returns a volume, or an error that wraps ErrNotFound.
func (d *Driver) get(name string) (Volume, error) {
	if err := checkName(name); err != nil {
		return Volume{}, err
	}
	fi, err := os.Stat(d.file(name, imageName))
	if errors.Is(err, fs.ErrNotExist) {
		return Volume{}, fmt.Errorf("%w: %s has no image in %s", ErrNotFound, name, d.opt.Dir)
	}
	if err != nil {
		return Volume{}, err
	}
	_, err = os.Stat(d.file(name, usedName))
	return Volume{Name: name, CapacityBytes: fi.Size(), Used: err == nil}, nil
}

// List returns the volumes, sorted by name. A volume that is not complete has the capacity 0.
func (d *Driver) List() ([]Volume, error) {
	entries, err := os.ReadDir(d.opt.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := []Volume{}
	for _, e := range entries {
		v, err := d.get(e.Name())
		switch {
		case errors.Is(err, ErrInvalid):
			continue // not a volume
		case errors.Is(err, ErrNotFound):
			v = Volume{Name: e.Name()} // being created, or its creation was interrupted
		case err != nil:
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Ensure creates a volume or grows it, so that it has at least that many bytes. It does nothing if it has. It returns an
// error that wraps ErrInvalid, ErrNoSpace, ErrUnsupported or ErrNotFound, or another one. ErrNotFound: the volume has had
// data, and its image is missing.
func (d *Driver) Ensure(ctx context.Context, name string, bytes int64) (Volume, error) {
	return d.resize(ctx, name, bytes, func(size int64) error {
		if _, err := os.Stat(d.file(name, usedName)); err == nil {
			return fmt.Errorf("%w: the image of %s is missing in %s, and the volume may have had data", ErrNotFound, name,
				d.opt.Dir)
		}
		return d.create(ctx, name, size)
	})
}

// Grow grows a volume, so that it has at least that many bytes. Errors are those of Ensure. ErrNotFound: the volume does
// not exist.
func (d *Driver) Grow(ctx context.Context, name string, bytes int64) (Volume, error) {
	return d.resize(ctx, name, bytes, nil)
}

// resize grows a volume. create creates one that does not exist; nil: that is an error.
func (d *Driver) resize(ctx context.Context, name string, bytes int64, create func(size int64) error) (Volume, error) {
	size := Size(bytes)
	if err := checkName(name); err != nil {
		return Volume{}, err
	}
	if bytes <= 0 || size == 0 {
		return Volume{}, fmt.Errorf("%w: capacityBytes %d must be positive and at most 2^62", ErrInvalid, bytes)
	}
	unlock, err := d.locks.Lock(ctx, name)
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	v, err := d.get(name)
	switch {
	case errors.Is(err, ErrNotFound) && create != nil:
		err = create(size)
	case err == nil && v.CapacityBytes < size:
		err = d.grow(name, v.CapacityBytes, size)
	}
	if err != nil {
		return Volume{}, err
	}
	if v, err = d.get(name); err != nil {
		return Volume{}, err
	}
	// Also if the image has its size: an earlier call may have been interrupted.
	v.Pending, err = d.growMounted(name)
	return v, err
}

// book allocates the bytes of an image from its size from up to its size to. The check of the free space and the
// allocation are one step for all volumes, so that no space is allocated twice.
func (d *Driver) book(f *os.File, from, to int64) error {
	d.space.Lock()
	defer d.space.Unlock()
	available, err := d.Available()
	if err != nil {
		return err
	}
	if to-from > available {
		return fmt.Errorf("%w: %d bytes requested, %d available in %s", ErrNoSpace, to-from, available, d.opt.Dir)
	}
	return fallocate(f, from, to)
}

// fallocate allocates the blocks of a file that are not allocated yet, from an offset up to another one. The file gets at
// least that size. Errors wrap ErrNoSpace or ErrUnsupported, or are others.
func fallocate(f *os.File, from, to int64) (err error) {
	for {
		err = unix.Fallocate(int(f.Fd()), 0, from, to-from)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: the file system of %s cannot preallocate files", ErrUnsupported, filepath.Dir(f.Name()))
	case err != nil:
		return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	return nil
}

// allocateAgain allocates the blocks of an image that the file system in it has freed.
func allocateAgain(image string) error {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fi, err := f.Stat()
	if err == nil {
		err = fallocate(f, 0, fi.Size())
	}
	return errors.Join(err, f.Close())
}

// create creates the image of a volume. The caller holds the lock of the volume.
func (d *Driver) create(ctx context.Context, name string, size int64) (err error) {
	if err := d.Supported(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.opt.Dir, name), 0o700); err != nil {
		return err
	}
	path := d.file(name, newImageName)
	if err := os.RemoveAll(path); err != nil { // of an interrupted call
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(filepath.Join(d.opt.Dir, name)) // else the next call does it
		}
	}()
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := d.book(f, 0, size); err != nil {
		return err
	}
	// Nothing is reserved for root: pods often run as root, and df is to show all of the space. A discard, and the
	// initialization of inode tables after the mount, would free blocks of the file.
	if err := runTool(ctx, 0, d.opt.Mkfs, "-q", "-F", "-b", fmt.Sprint(blockSize), "-m", "0", "-e", "remount-ro",
		"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", path); err != nil {
		return err
	}
	if err := errors.Join(fallocate(f, 0, size), f.Sync()); err != nil {
		return err
	}
	if err := os.Rename(path, d.file(name, imageName)); err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Join(d.opt.Dir, name)), syncDir(d.opt.Dir))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// grow enlarges the image of a volume. The caller holds the lock of the volume.
func (d *Driver) grow(name string, from, to int64) error {
	f, err := os.OpenFile(d.file(name, imageName), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.book(f, from, to), f.Sync(), f.Close())
}

// growMounted enlarges the file system of a mounted volume to the size of its image. A volume that is not mounted grows
// when it is staged. pending: the agent lacks the capability CAP_SYS_RESOURCE, which growing a mounted ext4 requires.
func (d *Driver) growMounted(name string) (pending bool, err error) {
	image := d.file(name, imageName)
	device, err := loopOf(image)
	if err != nil || device == "" {
		return false, err
	}
	dir, err := mountOf(device)
	if err != nil || dir == "" {
		return false, err
	}
	smaller, err := smallerThanImage(image)
	if err != nil || !smaller {
		return false, err
	}
	err = growFileSystem(device, dir)
	if errors.Is(err, unix.EPERM) {
		return true, nil
	}
	return false, errors.Join(err, allocateAgain(image))
}

// growImage enlarges the file system of an image that is not mounted to the size of the image. It does not end with ctx:
// an interrupted resize may damage the file system.
func growImage(ctx context.Context, image string) error {
	ctx = context.WithoutCancel(ctx)
	// The check replays the journal, without which the size cannot be changed. Code 1: errors were corrected.
	if err := runTool(ctx, 1, "e2fsck", "-f", "-p", image); err != nil {
		return err
	}
	return errors.Join(runTool(ctx, 0, "resize2fs", image), allocateAgain(image))
}

func runTool(ctx context.Context, highestCode int, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() >= 0 && exit.ExitCode() <= highestCode {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// smallerThanImage reports whether the ext4 in an image is smaller than the image, by its superblock.
func smallerThanImage(image string) (bool, error) {
	f, err := os.Open(image)
	if err != nil {
		return false, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	super := make([]byte, 1024)
	if _, err := f.ReadAt(super, 1024); err != nil {
		return false, err
	}
	if magic := binary.LittleEndian.Uint16(super[0x38:]); magic != unix.EXT4_SUPER_MAGIC {
		return false, fmt.Errorf("image %s has no ext4 file system (magic number %#x)", image, magic)
	}
	blocks := uint64(binary.LittleEndian.Uint32(super[0x4:])) | uint64(binary.LittleEndian.Uint32(super[0x150:]))<<32
	size := blocks << (10 + binary.LittleEndian.Uint32(super[0x18:]))
	return size < uint64(fi.Size()), nil //nolint:gosec // sizes are positive
}

// Delete removes a volume. It does nothing if the volume does not exist. It returns an error that wraps ErrInvalid or
// ErrInUse, or another one.
func (d *Driver) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	unlock, err := d.locks.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	device, err := loopOf(d.file(name, imageName))
	if err != nil {
		return err
	}
	if device != "" {
		return fmt.Errorf("%w: %s is attached to %s", ErrInUse, name, device)
	}
	// The image goes first: a directory without one is no volume.
	for _, file := range []string{imageName, newImageName} {
		if err := os.Remove(d.file(name, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(d.opt.Dir, name))
}

// mountFlags are the mount options that are flags of the system call. Others are passed to the file system.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME,
	"relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME, "lazytime": unix.MS_LAZYTIME,
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS,
	"dirsync": unix.MS_DIRSYNC, "defaults": 0,
}

// splitOptions splits mount options into flags and the options of the file system.
func splitOptions(options []string) (flags uintptr, data string) {
	var rest []string
	for _, o := range slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "" }) {
		if f, ok := mountFlags[o]; ok {
			flags |= f
		} else {
			rest = append(rest, o)
		}
	}
	return flags, strings.Join(rest, ",")
}
