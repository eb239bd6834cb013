package hosts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// startWithImages starts containerd with the images of the archives. An import takes more CPU time than a pod:
// the first host with these archives imports them, and the others link its files.
func (h *Host) startWithImages(ctx context.Context, archives []string) error {
	key, err := h.imageRootKey(ctx, archives)
	if err != nil {
		return err
	}
	imported := false
	dir, err := Cached("image-roots", key, func(dir string) error {
		imported = true
		if err := h.Restart(ctx); err != nil {
			return err
		}
		if err := h.Import(ctx, archives...); err != nil {
			return err
		}
		if err := h.Kill(); err != nil {
			return err
		}
		return linkRoot(ctx, h.slot.root(), dir)
	})
	if err != nil {
		return err
	}
	if !imported {
		if err := linkRoot(ctx, dir, h.slot.root()); err != nil {
			return err
		}
	}
	return h.Restart(ctx)
}

// imageRootKey names what decides on the content of containerd's root directory.
func (h *Host) imageRootKey(ctx context.Context, archives []string) (string, error) {
	program, err := h.program(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, file := range append([]string{program}, archives...) {
		st, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, file, st.Size(), st.ModTime().UnixNano())
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// linkRoot fills the directory to with the images of containerd's root directory from, while no containerd uses
// one of them. Content and layers are linked, because containerd only adds and removes their files.
// Databases are copied, because it writes to them.
func linkRoot(ctx context.Context, from, to string) error {
	var a, b syscall.Stat_t
	if err := syscall.Stat(from, &a); err != nil {
		return fmt.Errorf("stat %s: %w", from, err)
	}
	if err := syscall.Stat(to, &b); err != nil {
		return fmt.Errorf("stat %s: %w", to, err)
	}
	args := []string{"--archive", "--no-target-directory"}
	if a.Dev == b.Dev {
		args = append(args, "--link")
	}
	if out, err := exec.CommandContext(ctx, "cp", append(args, from, to)...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	if a.Dev != b.Dev {
		return nil
	}
	// Layers are in directories named snapshots, and files of images there may have any name.
	return filepath.WalkDir(to, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && e.Name() == "snapshots" {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".db") {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.WriteFile(name, data, 0o600)
	})
}
