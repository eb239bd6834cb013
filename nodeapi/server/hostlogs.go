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

// maxLinks limits the number of symbolic links followed to a log file.
const maxLinks = 8

// hostLogs serves the directory of the host's logs, like a file server.
func (s *server) hostLogs(w http.ResponseWriter, r *http.Request) {
	dir, err := openLogDir(s.h.SystemLogDir)
	if err != nil {
		writeError(w, fmt.Errorf("host logs: %w", err))
		return
	}
	defer func() { _ = dir.root.Close() }()
	http.StripPrefix("/logs", http.FileServer(dir)).ServeHTTP(w, r)
}

// openLogDir opens a directory of logs. The caller must close its root.
func openLogDir(name string) (logDir, error) {
	root, err := os.OpenRoot(name)
	return logDir{root: root, path: filepath.Clean(name)}, err
}

// logDir is a directory that cannot be escaped. Pods can write to it, and could create links to
// files that only the agent can read.
type logDir struct {
	root *os.Root
	path string
}

// Open opens a file or a directory. Other file types, such as pipes and devices, are reported as
// missing.
func (f logDir) Open(name string) (http.File, error) {
	rel := strings.TrimPrefix(path.Clean("/"+name), "/")
	if rel == "" {
		rel = "."
	}
	file, err := f.follow(rel)
	if err != nil {
		return nil, hideError(err)
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(hideError(err), file.Close())
	}
	return file, nil
}

// follow opens a path. Absolute links into this directory, such as those in /var/log/containers,
// are followed.
func (f logDir) follow(rel string) (*os.File, error) {
	for range maxLinks {
		// O_NONBLOCK: opening a pipe would block until there is a writer.
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

// hideError replaces all errors except permission errors by fs.ErrNotExist, so that a client learns
// nothing about files outside.
func hideError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fs.ErrNotExist
}
