package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFileName is the longest name that file systems take.
const maxFileName = 255

// logLinks is the folder where every container's log has a link whose name says
// whose it is: <pod>_<namespace>_<container>-<id>.log. Log shippers read it.
type logLinks struct{ dir string }

// name of a container's link. What is too long is cut from the pod's name, so
// that the ID, which shippers and remove look for, stays whole.
func (l logLinks) name(namespace, pod, container, id string) string {
	rest := "_" + namespace + "_" + container + "-" + id + ".log"
	return pod[:max(0, min(len(pod), maxFileName-len(rest)))] + rest
}

// make links the log file.
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

// remove takes the link of a container away, whatever else its name says.
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
