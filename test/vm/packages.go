package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// packages lists the packages of the disk image. apt adds their dependencies. containerd is needed for
// ctr, apparmor for its parser, runc for the library that the runc built here needs too, and e2fsprogs
// for volumes of the class local.
var packages = []string{"systemd", "kmod", "mount", "iproute2", "iptables", "runc", "containernetworking-plugins",
	"containerd", "busybox-static", "apparmor", "e2fsprogs"}

// kernels lists metapackages of small kernels in order of preference: Debian 12 (tmpfs supports ID-mapped
// mounts from 6.3 on), Debian, Ubuntu.
var kernels = []string{"linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64", "linux-image-virtual"}

// download downloads the packages to dir and returns their files. If that fails, it updates the package
// lists of apt and tries once more.
func download(ctx context.Context, dir string) ([]string, error) {
	err := fetch(ctx, dir)
	if err != nil {
		if errUpdate := run(ctx, "apt-get", "update", "-qq"); errUpdate != nil {
			return nil, fmt.Errorf("%w; update package lists: %w", err, errUpdate)
		}
		err = fetch(ctx, dir)
	}
	if err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(dir, "*.deb"))
}

func fetch(ctx context.Context, dir string) error {
	kernel, err := kernelPackages(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return err
	}
	// With an empty list of installed packages, apt downloads all dependencies.
	emptyStatus := filepath.Join(dir, "nothing")
	if err := os.WriteFile(emptyStatus, nil, 0o644); err != nil {
		return err
	}
	args := []string{
		"install", "-qq", "-y", "--download-only", "--no-install-recommends", "-o", "Dir::State::status=" + emptyStatus,
		"-o", "Dir::Cache::archives=" + dir, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root",
	}
	if err := run(ctx, "apt-get", append(args, packages...)...); err != nil {
		return err
	}
	// Without dependencies: those of a kernel only serve to build an initrd.
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-qq", "-o", "APT::Sandbox::User=root"},
		kernel...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download kernel: %w: %s", err, out)
	}
	return nil
}

// kernelPackages returns the packages with the kernel and its modules.
func kernelPackages(ctx context.Context) ([]string, error) {
	var lastErr error
	for _, name := range kernels {
		images, err := depends(ctx, name, "linux-image-")
		if err != nil || len(images) == 0 {
			lastErr = fmt.Errorf("no kernel package %s: %w", name, err)
			continue
		}
		modules, err := depends(ctx, images[0], "linux-modules-")
		return append(images[:1], modules...), err
	}
	return nil, lastErr
}

// depends lists the dependencies of a package whose names have the prefix.
func depends(ctx context.Context, name, prefix string) (out []string, err error) {
	text, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", name).Output()
	if err != nil {
		return nil, fmt.Errorf("list dependencies of %s: %w", name, err)
	}
	for line := range strings.Lines(string(text)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(p, prefix) {
			out = append(out, p)
		}
	}
	return out, nil
}

// unpackOne is dpkg -x that follows directory symlinks: dpkg would replace the link /bin to usr/bin by a
// directory.
const unpackOne = `dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"`

// unpack unpacks packages to root and removes documentation.
func unpack(ctx context.Context, root string, debs []string) error {
	work := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var unpackErr error
	for range runtime.NumCPU() {
		wg.Go(func() {
			for deb := range work {
				if err := run(ctx, "sh", "-c", unpackOne, "sh", deb, root); err != nil {
					mu.Lock()
					unpackErr = err
					mu.Unlock()
				}
			}
		})
	}
	for _, deb := range debs {
		work <- deb
	}
	close(work)
	wg.Wait()
	if unpackErr != nil {
		return unpackErr
	}
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
		"usr/share/bash-completion"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return nil
}
