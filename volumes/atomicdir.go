package volumes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"time"

	"berth/volumes/content"
)

const (
	dataLink = "..data"      // links to the directory of the current generation
	dataTmp  = "..data_tmp"  // is renamed to dataLink
	linkTmp  = "..entry_tmp" // is renamed to a user-visible link

	// readerGrace is how long a replaced generation is kept, so that a reader that has just
	// resolved dataLink can still open its file.
	readerGrace = 50 * time.Millisecond
)

// atomicDir is a directory whose content is replaced as a whole:
//
//	key      -> ..data/key
//	..data   -> ..2026_11_21_04_03_02.123456789
//	..2026_11_21_04_03_02.123456789/key
//
// Renaming ..data replaces the content. After a crash before the rename the old content is visible,
// after a crash behind it the new one. The next write cleans up. Names that start with ".." belong
// to the writer.
type atomicDir struct {
	path  string
	mode  os.FileMode   // of the directory itself
	gid   *int64        // fsGroup: group of all files, with read permission
	grace time.Duration // how long a replaced generation is kept
}

// write replaces the content by files. It reports whether the content has changed: identical
// content is not written.
func (d atomicDir) write(ctx context.Context, files content.Files) (changed bool, err error) {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return false, err
	}
	defer root.Close()
	if err := d.setOwnership(root, ".", d.mode, nil); err != nil {
		return false, err
	}
	old, err := current(root)
	if err != nil {
		return false, err
	}
	if err := removeStale(root, old); err != nil {
		return false, err
	}
	if old != "" && d.same(root, old, files) {
		return false, updateLinks(root, files)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	next, err := d.generation(root, files)
	if err != nil {
		return false, err
	}
	if err := root.Symlink(next, dataTmp); err != nil {
		return false, err
	}
	if err := root.Rename(dataTmp, dataLink); err != nil {
		return false, err
	}
	if err := updateLinks(root, files); err != nil {
		return true, err
	}
	if old == "" {
		return true, nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(d.grace):
	}
	return true, root.RemoveAll(old)
}

// current returns the generation that readers see. Empty: none.
func current(root *os.Root) (string, error) {
	name, err := root.Readlink(dataLink)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if fi, err := root.Lstat(name); err != nil || !fi.IsDir() {
		return "", nil //nolint:nilerr // its directory is missing: write a new one
	}
	return name, nil
}

// removeStale removes what an interrupted write has left.
func removeStale(root *os.Root, keep string) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if n := e.Name(); strings.HasPrefix(n, "..") && n != dataLink && n != keep {
			if err := root.RemoveAll(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// same reports whether a generation has exactly these files.
func (d atomicDir) same(root *os.Root, dir string, files content.Files) bool {
	all, equal := 0, 0
	err := fs.WalkDir(root.FS(), dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		all++
		want, ok := files[strings.TrimPrefix(p, dir+"/")]
		if !ok {
			return nil
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		if fi.Mode() != d.fileMode(want) || fi.Size() != int64(len(want.Data)) {
			return nil
		}
		data, err := root.ReadFile(p)
		if bytes.Equal(data, want.Data) {
			equal++
		}
		return err
	})
	return err == nil && all == equal && equal == len(files)
}

// generation writes the files to a new directory.
func (d atomicDir) generation(root *os.Root, files content.Files) (name string, err error) {
	name = fmt.Sprintf("..%s.%09d", time.Now().UTC().Format("2006_01_02_15_04_05"), rand.IntN(1e9))
	if err := d.mkdir(root, name); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.RemoveAll(name))
		}
	}()
	for p, f := range files {
		if err := d.mkdirs(root, name, path.Dir(p)); err != nil {
			return "", err
		}
		full := path.Join(name, p)
		if err := root.WriteFile(full, f.Data, 0o600); err != nil {
			return "", err
		}
		if err := d.setOwnership(root, full, d.fileMode(f), f.UID); err != nil {
			return "", err
		}
	}
	return name, nil
}

// mkdirs creates dir and its parents below base.
func (d atomicDir) mkdirs(root *os.Root, base, dir string) error {
	if dir == "." {
		return nil
	}
	for part := range strings.SplitSeq(dir, "/") {
		base = path.Join(base, part)
		if err := d.mkdir(root, base); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (d atomicDir) mkdir(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return d.setOwnership(root, name, 0o755, nil)
}

// setOwnership sets owner and mode. The group of a volume may read all of it and is inherited by
// new files.
func (d atomicDir) setOwnership(root *os.Root, name string, mode os.FileMode, uid *int64) error {
	u, g := -1, -1
	if uid != nil {
		u = int(*uid)
	}
	if d.gid != nil {
		g = int(*d.gid)
		if fi, err := root.Lstat(name); err != nil {
			return err
		} else if fi.IsDir() {
			mode |= os.ModeSetgid | 0o550
		}
	}
	if u >= 0 || g >= 0 {
		if err := root.Lchown(name, u, g); err != nil {
			return err
		}
	}
	// After the owner, because changing it may clear mode bits. Chmod ignores the umask.
	return root.Chmod(name, mode)
}

func (d atomicDir) fileMode(f content.File) os.FileMode {
	mode := os.FileMode(f.Mode).Perm()
	if d.gid != nil {
		mode |= 0o440
	}
	return mode
}

// updateLinks creates the user-visible links to ..data and removes those without a file. It removes
// nothing but such links.
func updateLinks(root *os.Root, files content.Files) error {
	want := map[string]bool{}
	for p := range files {
		top, _, _ := strings.Cut(p, "/")
		want[top] = true
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "..") {
			continue
		}
		to, err := root.Readlink(name)
		switch own := err == nil && to == path.Join(dataLink, name); {
		case own && want[name]:
			delete(want, name)
		case own:
			if err := root.Remove(name); err != nil {
				return err
			}
		}
	}
	for name := range want {
		if err := root.Symlink(path.Join(dataLink, name), linkTmp); err != nil {
			return err
		}
		if err := root.Rename(linkTmp, name); err != nil {
			return err
		}
	}
	return nil
}
