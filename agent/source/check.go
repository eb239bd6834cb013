package source

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/strictyaml"
)

// ManifestFile is a file to check: its content, or why it cannot be read.
type ManifestFile struct {
	Path string // unique
	Data []byte
	Err  error
}

// CheckedFile is the result of the check of a file.
type CheckedFile struct {
	Path    string
	Desired *DesiredState // nil: invalid
	Errors  []FileError   // by line
}

// CheckFiles validates files together, as a Directory does that finds all of them at its start. An object that an
// earlier file defines, in the order of the paths, is an error of the later one.
func CheckFiles(files []ManifestFile, id Identity, now time.Time) []CheckedFile {
	f := &Directory{
		opt: DirectoryOptions{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }},
		id:  id, files: map[string]*fileState{},
	}
	for _, file := range files {
		s := &fileState{path: file.Path}
		f.files[file.Path] = s
		if file.Err != nil {
			f.recordErrors(s, strictyaml.Errors{{Message: errorText(file.Err)}}, now)
			continue
		}
		desired, err := Validate(Input{Path: file.Path, Data: file.Data, Modified: now, Now: now}, id, nil)
		if err != nil {
			f.recordErrors(s, asErrors(err), now)
			continue
		}
		s.good = desired
	}
	problems := map[string][]FileError{}
	for _, e := range f.snapshot().FileErrors {
		problems[e.Path] = append(problems[e.Path], e)
	}
	out := make([]CheckedFile, 0, len(files))
	for _, file := range files {
		out = append(out, CheckedFile{
			Path: file.Path, Desired: f.files[file.Path].good, Errors: problems[file.Path],
		})
	}
	return out
}

// ReadDirectory reads the manifests of a directory as a Directory does, in order. unread are the names of files that
// are not read although they are neither hidden nor left by an editor or a package manager.
func ReadDirectory(path string) (files []ManifestFile, unread []string, err error) {
	paths, unread, err := listManifests(path)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range paths {
		v, err := readVersion(p)
		if !errors.Is(err, fs.ErrNotExist) { // deleted, or a link to a directory
			files = append(files, ManifestFile{Path: p, Data: v.data, Err: err})
		}
	}
	return files, unread, nil
}

// listManifests returns the sorted paths of the manifests in a directory, and the names of the files that are not read.
func listManifests(dir string) (paths, unread []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir() || ignoredName(name):
		case manifestName(name):
			paths = append(paths, filepath.Join(dir, name))
		default:
			unread = append(unread, name)
		}
	}
	return paths, unread, nil
}

// Summary returns how many objects of each kind there are: "1 Pod, 2 Deployments".
func (d *DesiredState) Summary() string {
	counts := map[string]int{"Pod": len(d.Pods), "Service": len(d.Services)}
	for _, w := range d.Workloads {
		counts[w.Key().Kind]++
	}
	for key := range d.Objects {
		counts[string(key.Kind)]++
	}
	var out []string
	for _, kind := range kindNames {
		switch n := counts[kind]; n {
		case 0:
		case 1:
			out = append(out, "1 "+kind)
		default:
			out = append(out, fmt.Sprintf("%d %ss", n, kind))
		}
	}
	if len(out) == 0 {
		return "no objects"
	}
	return strings.Join(out, ", ")
}
