package volumes

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxDepth limits the depth of a walk, which keeps one directory open per level. Deeper trees are
// first moved up, so that the walk cannot exhaust the agent's file descriptors.
const maxDepth = 64

// removeTree deletes path and everything below it, never through a symbolic link and never into a
// mount: mounts below are unmounted (V2). A missing path is not an error. An interrupted walk can
// be continued by another call.
func removeTree(ctx context.Context, path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	r := remover{ctx: ctx, top: parent, name: filepath.Base(path)}
	if err := r.remove(parent, r.name, path, 0); err != nil {
		return err
	}
	// A moved tree may itself contain deeper ones that are moved up.
	for i := 0; i < len(r.moved); i++ { //nolint:intrange // the list grows meanwhile
		if err := r.remove(parent, r.moved[i], filepath.Join(filepath.Dir(path), r.moved[i]), 0); err != nil {
			return err
		}
	}
	return nil
}

type remover struct {
	ctx   context.Context
	top   int      // directory that contains the tree
	name  string   // of the tree in top
	moved []string // trees that were moved up into top
}

// remove deletes one entry of an open directory. shown is its path for errors.
func (r *remover) remove(dir int, name, shown string, depth int) error {
	for range maxStacked {
		err := r.try(dir, name, shown, depth)
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EXDEV) {
			return err
		}
		is, serr := isMountAt(dir, name)
		if serr != nil || !is {
			return err
		}
		if err := unmountAt(dir, name, shown); err != nil {
			return err
		}
	}
	return &os.PathError{Op: "remove", Path: shown, Err: unix.EBUSY}
}

func (r *remover) try(dir int, name, shown string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.EISDIR):
		return &os.PathError{Op: "remove", Path: shown, Err: err}
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if depth == maxDepth {
		return r.moveUp(dir, name, shown)
	}
	if err := r.empty(dir, name, shown, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove", Path: shown, Err: err}
	}
	return nil
}

// empty deletes the entries of a directory.
func (r *remover) empty(dir int, name, shown string, depth int) error {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: shown, Err: err}
	}
	f := os.NewFile(uintptr(fd), shown)
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := r.remove(fd, n, filepath.Join(shown, n), depth+1); err != nil {
				return err
			}
		}
		// Deleting while reading may skip entries, so read again from the start.
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// moveUp moves a deep directory next to the tree's root, where it is deleted later. It includes
// directories that an interrupted walk has left there.
func (r *remover) moveUp(dir int, name, shown string) error {
	for {
		to := r.name + "." + strconv.Itoa(len(r.moved))
		err := unix.Renameat2(dir, name, r.top, to, unix.RENAME_NOREPLACE)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "move", Path: shown, Err: err}
		}
		r.moved = append(r.moved, to)
		if err == nil {
			return nil
		}
	}
}
