package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// keptModules lists the module directories and files that pods or their networks may need.
var keptModules = []string{"net", "lib", "crypto", "arch", "fs/overlayfs", "fs/nls", "fs/ext4", "fs/jbd2",
	"fs/mbcache.ko", "drivers/virtio", "drivers/block", "drivers/net"}

// bootModules lists the modules that are needed to mount the root file system. They may be built into
// the kernel.
var bootModules = []string{"virtio_pci", "virtio_blk", "ext4"}

// extractKernel moves the kernel of root to dir, writes an initrd that mounts the disk to dir, and
// removes the unused modules of root.
func extractKernel(ctx context.Context, root, dir string) error {
	found, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("got kernels %v, want one: %w", found, err)
	}
	version := strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-")
	if err := os.Rename(found[0], filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	modules := filepath.Join(root, "usr/lib/modules", version)
	if err := removeModules(filepath.Join(modules, "kernel")); err != nil {
		return err
	}
	if err := run(ctx, "chroot", root, "/usr/sbin/depmod", version); err != nil {
		return fmt.Errorf("run depmod: %w", err)
	}
	order, err := loadOrder(modules)
	if err != nil {
		return err
	}
	archive, err := initrd(ctx, root, modules, order)
	if err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "initrd"), archive, 0o644)
}

// removeModules removes all modules that are not in keptModules.
func removeModules(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(keptModules, func(k string) bool { return rel == k || strings.HasPrefix(rel, k+"/") }) {
			return nil
		}
		return os.Remove(path)
	})
}

// loadOrder returns the files of the boot modules and their dependencies, dependencies first, as paths
// relative to the module directory.
func loadOrder(modules string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	var order []string
	for _, want := range bootModules {
		for line := range strings.Lines(string(text)) {
			file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			name, _, _ := strings.Cut(filepath.Base(file), ".")
			if strings.ReplaceAll(name, "-", "_") != want {
				continue
			}
			needed := strings.Fields(needs) // dependencies before their own dependencies
			slices.Reverse(needed)
			for _, f := range append(needed, file) {
				if !slices.Contains(order, f) {
					order = append(order, f)
				}
			}
		}
	}
	return order, nil
}

const initScript = `#!/busybox sh
/busybox mount -t devtmpfs dev /dev
/busybox mount -t proc proc /proc
for m in $(/busybox cat /order); do /busybox insmod $m; done
i=0
while ! [ -b /dev/vdb ] && [ $i -lt 100 ]; do /busybox sleep 0.1; i=$((i+1)); done
/busybox mount -t ext4 /dev/vda /root && /busybox mount -t ext4 -o ro /dev/vdb /root` + extra + ` || exec /busybox sh
/busybox umount /proc
/busybox mount --move /dev /root/dev
exec /busybox switch_root /root /usr/lib/systemd/systemd
`

// initrd returns a cpio archive with busybox, the boot modules and the init script.
func initrd(ctx context.Context, root, modules string, order []string) ([]byte, error) {
	var out cpio
	for _, dir := range []string{"dev", "proc", "root", "m"} {
		out.add(dir, 0o040755, nil)
	}
	busybox, err := os.ReadFile(filepath.Join(root, "usr/bin/busybox"))
	if err != nil {
		return nil, err
	}
	out.add("busybox", 0o100755, busybox)
	out.add("init", 0o100755, []byte(initScript))
	var list strings.Builder
	for _, file := range order {
		content, err := decompressModule(ctx, filepath.Join(modules, file))
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		out.add("m/"+name, 0o100644, content)
		fmt.Fprintln(&list, "/m/"+name)
	}
	out.add("order", 0o100644, []byte(list.String()))
	return out.end(), nil
}

// decompressModule returns the content of a module, which distributions may compress.
func decompressModule(ctx context.Context, file string) ([]byte, error) {
	tools := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}
	tool, compressed := tools[filepath.Ext(file)]
	if !compressed {
		return os.ReadFile(file)
	}
	out, err := exec.CommandContext(ctx, tool, "-dc", file).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("decompress %s: install %s: %w", filepath.Base(file), tool, err)
	}
	return out, err
}

// cpio is an archive in the newc format, which the kernel expects of an initrd.
type cpio struct {
	bytes.Buffer
	n int
}

func (c *cpio) add(name string, mode int, content []byte) {
	c.n++
	fmt.Fprintf(c, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", c.n, mode, 0, 0, 1, 0, len(content), 0,
		0, 0, 0, len(name)+1, 0)
	c.WriteString(name + "\x00")
	c.pad()
	c.Write(content)
	c.pad()
}

func (c *cpio) pad() {
	for c.Len()%4 != 0 {
		c.WriteByte(0)
	}
}

func (c *cpio) end() []byte {
	c.add("TRAILER!!!", 0, nil)
	return c.Bytes()
}
