package images

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// tree is the content of an image layer, by absolute path.
type tree map[string]entry

type entry struct {
	mode     fs.FileMode // type and permissions, setuid and sticky bits included
	link     string      // target of a symbolic link
	data     []byte
	uid, gid int
}

// file adds a regular file.
func (t tree) file(name string, perm fs.FileMode, data []byte) {
	t[name] = entry{mode: perm, data: data}
}

// text adds a world-readable regular file.
func (t tree) text(name, content string) { t.file(name, 0o644, []byte(content)) }

// dir adds a directory. Parent directories are added automatically.
func (t tree) dir(name string, perm fs.FileMode) { t[name] = entry{mode: fs.ModeDir | perm} }

// symlink adds a symbolic link.
func (t tree) symlink(name, target string) {
	t[name] = entry{mode: fs.ModeSymlink | 0o777, link: target}
}

// owner sets the owner of an entry.
func (t tree) owner(name string, uid, gid int) {
	e := t[name]
	e.uid, e.gid = uid, gid
	t[name] = e
}

// copyFile adds the local file src as name. It follows links.
func (t tree) copyFile(name, src string) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	fi, err := os.Stat(src)
	if err != nil {
		return err
	}
	t.file(name, fi.Mode().Perm(), data)
	return nil
}

// copyDir adds everything below root/name as name.
func (t tree) copyDir(root, name string) error {
	return filepath.WalkDir(filepath.Join(root, name), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		in := "/" + strings.TrimPrefix(strings.TrimPrefix(p, root), "/")
		switch {
		case d.IsDir():
			t.dir(in, 0o755)
			return nil
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(p)
			t.symlink(in, target)
			return err
		default:
			return t.copyFile(in, p)
		}
	})
}

// layer returns the tree as a gzipped OCI layer, sorted and with zero timestamps.
func (t tree) layer() (v1.Layer, error) {
	all := maps.Clone(t)
	for name := range t {
		for p := path.Dir(name); p != "/"; p = path.Dir(p) {
			if _, ok := all[p]; !ok {
				all.dir(p, 0o755)
			}
		}
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := writeEntry(w, name, all[name]); err != nil {
			return nil, fmt.Errorf("pack %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

func writeEntry(w *tar.Writer, name string, e entry) error {
	h, err := tar.FileInfoHeader(headerSource{name, e}, e.link)
	if err != nil {
		return err
	}
	h.Name = strings.TrimPrefix(name, "/")
	if e.mode.IsDir() {
		h.Name += "/"
	}
	h.Uid, h.Gid, h.Uname, h.Gname = e.uid, e.gid, "", ""
	h.Format = tar.FormatPAX
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.Write(e.data)
	return err
}
