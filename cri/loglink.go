package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFileName is the maximum length of a file name, in bytes.
const maxFileName = 255

// logLinks is the directory that has a link to the log of every container, named
// <pod>_<namespace>_<container>-<id>.log. Log shippers read it.
type logLinks struct{ dir string }

// name returns the name of a container's link. If it is too long, the pod name is truncated, so
// that the container ID stays complete: log shippers and remove depend on it.
func (l logLinks) name(namespace, pod, container, id string) string {
	rest := "_" + namespace + "_" + container + "-" + id + ".log"
	return pod[:max(0, min(len(pod), maxFileName-len(rest)))] + rest
}

// make creates the link to a log file.
func (l logLinks) make(namespace, pod, container, id, log string) error {
	if l.dir == "" {
		return nil
	}
	link := filepath.Join(l.dir, l.name(namespace, pod, container, id))
	err := os.Symlink(log, link)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(l.dir, 0o755); err == nil {
			err = os.Symlink(log, link)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		if target, readErr := os.Readlink(link); readErr == nil && target == log {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("link log of container %s: %w", container, err)
	}
	return nil
}

// remove deletes the link of a container by its ID.
func (l logLinks) remove(id string) error {
	if l.dir == "" || id == "" {
		return nil
	}
	d, err := os.Open(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove log link of container %s: %w", id, err)
	}
	names, err := d.Readdirnames(-1)
	err = errors.Join(err, d.Close())
	for _, name := range names {
		if strings.HasSuffix(name, "-"+id+".log") {
			if e := os.Remove(filepath.Join(l.dir, name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("remove log link of container %s: %w", id, err)
	}
	return nil
}
