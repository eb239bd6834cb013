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

// packages are what the machine is made of; apt adds what they depend on.
// containerd is there for its ctr, apparmor for its parser, runc for the library
// that the one built here needs too.
var packages = []string{"systemd", "kmod", "mount", "iproute2", "iptables", "runc", "containernetworking-plugins", "containerd", "busybox-static", "apparmor"}

// kernels are the packages that stand for the newest small kernel: those of
// Debian 12 (one from 6.3 on maps the users of a tmpfs), Debian, Ubuntu.
var kernels = []string{"linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64", "linux-image-virtual"}

// download fetches the packages into dir and returns their files. Where apt's
// lists are missing or too old for the archive, they are renewed once.
func download(ctx context.Context, dir string) ([]string, error) {
	err := fetch(ctx, dir)
	if err != nil {
		if update := run(ctx, "apt-get", "update", "-qq"); update != nil {
			return nil, fmt.Errorf("%w; renew the lists: %w", err, update)
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
	// With a list of installed packages that is empty apt fetches all that a
	// machine needs which has nothing.
	nothing := filepath.Join(dir, "nothing")
	if err := os.WriteFile(nothing, nil, 0o644); err != nil {
		return err
	}
	args := []string{
		"install", "-qq", "-y", "--download-only", "--no-install-recommends", "-o", "Dir::State::status=" + nothing,
		"-o", "Dir::Cache::archives=" + dir, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root",
	}
	if err := run(ctx, "apt-get", append(args, packages...)...); err != nil {
		return err
	}
	// A kernel's dependencies build an initrd, which is made here by hand.
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-qq", "-o", "APT::Sandbox::User=root"}, kernel...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download the kernel: %w: %s", err, out)
	}
	return nil
}

// kernelPackages names the packages with the kernel and its modules.
func kernelPackages(ctx context.Context) ([]string, error) {
	var last error
	for _, name := range kernels {
		images, err := depends(ctx, name, "linux-image-")
		if err != nil || len(images) == 0 {
			last = fmt.Errorf("apt knows no kernel %s: %w", name, err)
			continue
		}
		modules, err := depends(ctx, images[0], "linux-modules-")
		return append(images[:1], modules...), err
	}
	return nil, last
}

// depends lists the packages of a prefix that a package depends on.
func depends(ctx context.Context, name, prefix string) (out []string, err error) {
	text, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", name).Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt what %s depends on: %w", name, err)
	}
	for line := range strings.Lines(string(text)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(p, prefix) {
			out = append(out, p)
		}
	}
	return out, nil
}

// unpackOne is dpkg -x that unpacks into what a link leads to: where /bin is one
// to usr/bin, dpkg would replace it by a folder.
const unpackOne = `dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"`

// unpack unpacks packages over each other, without unread files.
func unpack(ctx context.Context, root string, debs []string) error {
	work := make(chan string)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var bad error
	for range runtime.NumCPU() {
		wg.Go(func() {
			for deb := range work {
				if err := run(ctx, "sh", "-c", unpackOne, "sh", deb, root); err != nil {
					mu.Lock()
					bad = err
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
	if bad != nil {
		return bad
	}
	for _, dir := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/bash-completion"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	return nil
}
