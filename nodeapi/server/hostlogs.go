package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds how many links one after the other lead to a log.
const maxLinks = 8

// hostLogs shows the folder of the host's logs, as a file server does.
func (s *server) hostLogs(w http.ResponseWriter, r *http.Request) {
	root, err := os.OpenRoot(s.h.SystemLogDir)
	if err != nil {
		complain(w, fmt.Errorf("the host's logs: %w", err))
		return
	}
	defer func() { _ = root.Close() }()
	http.StripPrefix("/logs", http.FileServer(logFolder{root: root, path: filepath.Clean(s.h.SystemLogDir)})).ServeHTTP(w, r)
}

// logFolder is a folder of which nothing leads out: pods may write to it, and
// could lay links in it to what the agent may read and they may not.
type logFolder struct {
	root *os.Root
	path string
}

// Open opens a file or a folder below. What is neither, as a pipe or a device, is
// not there.
func (f logFolder) Open(name string) (http.File, error) {
	rel := strings.TrimPrefix(path.Clean("/"+name), "/")
	if rel == "" {
		rel = "."
	}
	file, err := f.follow(rel)
	if err != nil {
		return nil, notThere(err)
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(notThere(err), file.Close())
	}
	return file, nil
}

// follow opens a path. Links that name their target from the host's root, as
// those of /var/log/containers do, are taken from here if they lead here.
func (f logFolder) follow(rel string) (*os.File, error) {
	for range maxLinks {
		// A pipe would keep its opener waiting for a writer.
		file, err := f.root.OpenFile(rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return file, err
		}
		target, err2 := f.root.Readlink(rel)
		inside, within := strings.CutPrefix(filepath.Clean(target), f.path+"/")
		if err2 != nil || !filepath.IsAbs(target) || !within {
			return nil, err
		}
		rel = inside
	}
	return nil, fs.ErrNotExist
}

// notThere is the answer for what may not be seen, too: why is nobody's business.
func notThere(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fs.ErrNotExist
}
