package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// pack writes a local file or directory to an archive under the given name. Symbolic links in a
// directory are kept as links.
func pack(w io.Writer, from, name string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(from, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		return packOne(out, file, path.Join(name, filepath.ToSlash(rel)), e)
	})
	return errors.Join(err, out.Close())
}

func packOne(out *tar.Writer, file, name string, e fs.DirEntry) error {
	st, err := e.Info()
	if err != nil {
		return err
	}
	link := ""
	switch st.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s is not a file, directory or symbolic link", file)
	}
	head, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	head.Name = name
	if e.IsDir() {
		head.Name += "/"
	}
	head.Uid, head.Gid, head.Uname, head.Gname = 0, 0, "", "" // user IDs of this host have no meaning in the container
	if err := out.WriteHeader(head); err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return errors.Join(err, f.Close())
}

// unpack extracts an archive of one file or directory, whose names all start with base, to the
// local path to: into it if that is a directory, else under its name. Files are opened relative to
// the parent directory of to, and no symbolic link out of it is followed. Links in the archive are
// skipped with a warning.
func unpack(r io.Reader, base, to string, notes io.Writer) error {
	dir, name := filepath.Split(filepath.Clean(to))
	if dir == "" {
		dir = "."
	}
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		dir, name = to, base
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	in := tar.NewReader(r)
	found := false
	for {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, root.Close())
		}
		rel, err := below(head.Name, base)
		if err == nil {
			found = true
			err = unpackOne(root, path.Join(name, rel), head, in, notes)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", clean(head.Name), err), root.Close())
		}
	}
	_, err = io.Copy(io.Discard, r) // padding of the archive
	if err == nil && !found {
		err = errors.New("no data received")
	}
	return errors.Join(err, root.Close())
}

// below returns a name in the archive relative to base.
func below(name, base string) (string, error) {
	clean := path.Clean(name)
	if base == "." {
		if !filepath.IsLocal(clean) {
			return "", errors.New("path escapes the target")
		}
		return clean, nil
	}
	rest, ok := strings.CutPrefix(clean, base)
	if !ok || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("path does not start with %s", base)
	}
	rest = strings.TrimPrefix(rest, "/")
	if rest != "" && !filepath.IsLocal(rest) {
		return "", errors.New("path escapes the target")
	}
	return rest, nil
}

func unpackOne(root *os.Root, name string, head *tar.Header, in io.Reader, notes io.Writer) error {
	mode := fs.FileMode(head.Mode).Perm()
	switch head.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil
		}
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return root.Chmod(name, mode|0o700)
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if st, err := root.Lstat(name); err == nil && !st.IsDir() { // a symbolic link is replaced, not followed
			if err := root.Remove(name); err != nil {
				return err
			}
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink, tar.TypeLink:
		_, err := fmt.Fprintf(notes, "warning: skipping symlink: %q -> %q\n", clean(name), clean(head.Linkname))
		return err
	default:
		_, err := fmt.Fprintf(notes, "warning: skipping %q: not a file or directory\n", clean(name))
		return err
	}
}
