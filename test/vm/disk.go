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

// recipe is all in this package that makes a disk what it is.
//
//go:embed disk.go packages.go kernel.go store.go all:root
var recipe embed.FS

// host is what boots: the files of one folder of the cache.
type host struct{ dir string }

func (h host) kernel() string { return filepath.Join(h.dir, "vmlinuz") }
func (h host) initrd() string { return filepath.Join(h.dir, "initrd") }
func (h host) disk() string   { return filepath.Join(h.dir, "root.img") }

const (
	diskSize = "1G"     // sparse
	extra    = "/extra" // where the second disk is: what changes with every build
)

// makeHost returns the disk that the recipe makes, made at most once.
func makeHost(ctx context.Context) (host, error) {
	if runtime.GOARCH != "amd64" {
		return host{}, fmt.Errorf("the emulated machine is amd64 only, this one is %s", runtime.GOARCH)
	}
	in, err := gather(ctx)
	if err != nil {
		return host{}, err
	}
	key, err := hostKey(in)
	if err != nil {
		return host{}, err
	}
	dir, err := hosts.Cached("vm", key, func(dir string) error { return fill(ctx, dir, in) })
	if err != nil {
		return host{}, fmt.Errorf("make the machine's disk: %w", err)
	}
	forgetOthers(dir)
	return host{dir}, nil
}

// parts are what is built here and goes on the disk.
type parts struct {
	containerd, runc string // folders
	archives         []images.Archive
}

func gather(ctx context.Context) (in parts, err error) {
	if in.containerd, err = hosts.Containerd2(ctx); err != nil {
		return in, err
	}
	if in.runc, err = hosts.Runc(ctx); err != nil {
		return in, err
	}
	in.archives, err = imported(ctx)
	return in, err
}

// hostKey names a disk after all that it is made of. The versions of the
// packages are not in it: those of the day that made it serve as well.
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

// forgetOthers removes the disks of other recipes: each has hundreds of
// megabytes. One that cannot be removed is tried again by the next.
func forgetOthers(dir string) {
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"))
	for _, other := range others {
		if other != dir && filepath.Base(other) != "lock" && !strings.HasPrefix(filepath.Base(other), "building-") {
			_ = os.RemoveAll(other)
		}
	}
}

// fill makes the files of a host in dir.
func fill(ctx context.Context, dir string, in parts) error {
	root := filepath.Join(dir, "root")
	defer os.RemoveAll(root)
	if err := skeleton(root); err != nil {
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
	for _, program := range []string{in.containerd + "/containerd", in.containerd + "/containerd-shim-runc-v2", in.runc + "/runc"} {
		if err := copyFile(filepath.Join(root, "usr/local/bin", filepath.Base(program)), program); err != nil {
			return err
		}
	}
	if err := importImages(ctx, filepath.Join(root, "var/lib/containerd"), in.containerd, in.archives); err != nil {
		return fmt.Errorf("import images: %w", err)
	}
	if err := settle(ctx, root); err != nil {
		return err
	}
	if err := takeKernel(ctx, root, dir); err != nil {
		return err
	}
	return makeDisk(ctx, filepath.Join(dir, "root.img"), root, diskSize)
}

// skeleton makes the folders that no package of ours brings, and those links
// that have to be there before anything is unpacked through them.
func skeleton(root string) error {
	for _, dir := range []string{
		"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "dev", "proc", "sys", "run", "tmp", "root", "var/lib", "var/log/journal",
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

// masked are units that only cost time in an emulated machine.
var masked = []string{
	"systemd-journal-flush.service", "systemd-logind.service", "systemd-random-seed.service", "systemd-remount-fs.service",
	"systemd-update-utmp.service", "systemd-update-utmp-runlevel.service", "systemd-tmpfiles-setup.service",
	"systemd-tmpfiles-setup-dev.service", "systemd-tmpfiles-clean.timer", "systemd-user-sessions.service",
	"systemd-sysusers.service", "systemd-firstboot.service", "systemd-machine-id-commit.service", "systemd-pstore.service",
	"systemd-ask-password-console.path", "systemd-ask-password-wall.path", "dev-mqueue.mount", "sys-kernel-debug.mount",
	"sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "modprobe@.service",
	"getty.target", "proc-sys-fs-binfmt_misc.automount", "systemd-quotacheck.service", "quotaon.service",
}

// settle turns unpacked packages into a system that boots: its own files, the
// shell, the units that start.
func settle(ctx context.Context, root string) error {
	own, err := fs.Sub(recipe, "root")
	if err != nil {
		return err
	}
	err = fs.WalkDir(own, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(own, path)
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
	for _, unit := range masked {
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
	for _, name := range []string{"iptables", "ip6tables"} { // as its package does when it is installed
		errs = append(errs, link(name+"-nft", filepath.Join(root, "usr/sbin", name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return busyboxLinks(ctx, root)
}

// busyboxLinks has busybox stand in for every program that no package brought.
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

// makeDisk makes a file with an ext4 file system that holds a folder.
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

// run runs a program; what it said is in the error.
func run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
