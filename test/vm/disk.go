package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"berth/test/hosts"
	"berth/test/images"
)

// recipe contains the files of this package that determine the disk image.
//
//go:embed disk.go packages.go kernel.go store.go all:root
var recipe embed.FS

// host is a bootable disk image with kernel and initrd: the files of one directory of the cache.
type host struct{ dir string }

func (h host) kernel() string { return filepath.Join(h.dir, "vmlinuz") }
func (h host) initrd() string { return filepath.Join(h.dir, "initrd") }
func (h host) disk() string   { return filepath.Join(h.dir, "root.img") }

const (
	diskSize = "2G"     // sparse; the kubelet evicts pods from a node with little free space
	extra    = "/extra" // mount point of the second disk, with the files under test
)

// makeHost returns the disk image of the recipe. It is built at most once.
func makeHost(ctx context.Context) (host, error) {
	if runtime.GOARCH != "amd64" {
		return host{}, fmt.Errorf("the emulated machine is amd64 only, this one is %s", runtime.GOARCH)
	}
	in, err := collectParts(ctx)
	if err != nil {
		return host{}, err
	}
	key, err := hostKey(in)
	if err != nil {
		return host{}, err
	}
	dir, err := hosts.Cached("vm", key, func(dir string) error { return buildHost(ctx, dir, in) })
	if err != nil {
		return host{}, fmt.Errorf("build disk image: %w", err)
	}
	removeStaleImages(dir)
	return host{dir}, nil
}

// parts are the inputs of the disk image that this module builds.
type parts struct {
	containerd, runc string // directories
	archives         []images.Archive
}

func collectParts(ctx context.Context) (in parts, err error) {
	if in.containerd, err = hosts.Containerd2(ctx); err != nil {
		return in, err
	}
	if in.runc, err = hosts.Runc(ctx); err != nil {
		return in, err
	}
	in.archives, err = podImages(ctx)
	return in, err
}

// hostKey returns the cache key of a disk image, a hash of its inputs. It does not include package
// versions: an image with older packages stays valid.
func hostKey(in parts) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, filepath.Base(in.containerd), filepath.Base(in.runc))
	for _, a := range in.archives {
		fmt.Fprintln(sum, filepath.Base(a.Path))
	}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	sum.Write(release)
	err = fs.WalkDir(recipe, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := recipe.ReadFile(path)
		fmt.Fprintln(sum, path, len(text))
		sum.Write(text)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))[:16], err
}

// removeStaleImages removes the disk images of other recipes, which have hundreds of megabytes each.
// Errors are ignored: the next call tries again.
func removeStaleImages(dir string) {
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"))
	for _, other := range others {
		if other != dir && filepath.Base(other) != "lock" && !strings.HasPrefix(filepath.Base(other), "building-") {
			_ = os.RemoveAll(other)
		}
	}
}

// buildHost builds the disk image, the kernel and the initrd of a host in dir.
func buildHost(ctx context.Context, dir string, in parts) error {
	root := filepath.Join(dir, "root")
	defer os.RemoveAll(root)
	if err := makeDirectories(root); err != nil {
		return err
	}
	debs, err := download(ctx, filepath.Join(dir, "debs"))
	if err != nil {
		return err
	}
	defer os.RemoveAll(filepath.Join(dir, "debs"))
	if err := unpack(ctx, root, debs); err != nil {
		return err
	}
	for _, program := range []string{in.containerd + "/containerd", in.containerd + "/containerd-shim-runc-v2",
		in.runc + "/runc"} {
		if err := copyFile(filepath.Join(root, "usr/local/bin", filepath.Base(program)), program); err != nil {
			return err
		}
	}
	if err := importImages(ctx, filepath.Join(root, "var/lib/containerd"), in.containerd, in.archives); err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	if err := configureRoot(ctx, root); err != nil {
		return err
	}
	if err := extractKernel(ctx, root, dir); err != nil {
		return err
	}
	return makeDisk(ctx, filepath.Join(dir, "root.img"), root, diskSize)
}

// makeDirectories creates the directories that no package contains, and the links that must exist before
// packages are unpacked through them.
func makeDirectories(root string) error {
	for _, dir := range []string{
		"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "dev", "proc", "sys", "run", "tmp", "root",
		"var/lib", "var/log/journal",
		"var/tmp", "etc", strings.TrimPrefix(extra, "/"), "boot",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	var errs []error
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		errs = append(errs, os.Symlink("usr/"+name, filepath.Join(root, name)))
	}
	return errors.Join(append(errs, os.Symlink("/run", filepath.Join(root, "var/run")))...)
}

// maskedUnits lists units that only cost time in an emulated machine.
var maskedUnits = []string{
	"systemd-journal-flush.service", "systemd-logind.service", "systemd-random-seed.service",
	"systemd-remount-fs.service",
	"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-tmpfiles-setup.service",
	"systemd-tmpfiles-setup-dev.service", "systemd-tmpfiles-clean.timer", "systemd-user-sessions.service",
	"systemd-sysusers.service", "systemd-firstboot.service", "systemd-machine-id-commit.service",
	"systemd-pstore.service",
	"systemd-ask-password-console.path", "systemd-ask-password-wall.path", "dev-mqueue.mount", "sys-kernel-debug.mount",
	"sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "modprobe@.service",
	"getty.target", "proc-sys-fs-binfmt_misc.automount", "systemd-quotacheck.service", "quotaon.service",
}

// configureRoot turns unpacked packages into a bootable system: configuration files, shell and enabled
// units.
func configureRoot(ctx context.Context, root string) error {
	overlay, err := fs.Sub(recipe, "root")
	if err != nil {
		return err
	}
	err = fs.WalkDir(overlay, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(overlay, path)
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(root, path), text)
	})
	if err != nil {
		return err
	}
	units := filepath.Join(root, "etc/systemd/system")
	var errs []error
	for _, unit := range maskedUnits {
		errs = append(errs, link("/dev/null", filepath.Join(units, unit)))
	}
	for _, unit := range []string{"containerd.service", "berth.service", "guest.service"} {
		errs = append(errs, link("../"+unit, filepath.Join(units, "multi-user.target.wants", unit)))
	}
	errs = append(errs,
		link("/usr/lib/systemd/system/multi-user.target", filepath.Join(units, "default.target")),
		link(extra+"/berth", filepath.Join(root, "usr/bin/berth")),
		link(extra+"/berth.service", filepath.Join(units, "berth.service")),
	)
	for _, name := range []string{"iptables", "ip6tables"} { // as the postinst script of the package does
		errs = append(errs, link(name+"-nft", filepath.Join(root, "usr/sbin", name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return busyboxLinks(ctx, root)
}

// busyboxLinks links every busybox applet that no package provides.
func busyboxLinks(ctx context.Context, root string) error {
	out, err := exec.CommandContext(ctx, filepath.Join(root, "usr/bin/busybox"), "--list").Output()
	if err != nil {
		return fmt.Errorf("list applets of busybox: %w", err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if exists(filepath.Join(root, "usr/bin", applet)) || exists(filepath.Join(root, "usr/sbin", applet)) {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "usr/bin", applet)); err != nil {
			return err
		}
	}
	return nil
}

// makeDisk creates a file with an ext4 file system that contains a directory.
func makeDisk(ctx context.Context, file, dir, size string) error {
	return run(ctx, "mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", dir, file, size)
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

func link(to, name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(to, name)
}

func writeFile(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

func copyFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o755)
}

// run runs a program. An error contains its output.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
