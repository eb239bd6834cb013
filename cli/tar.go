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

// pack writes a local file or directory into an archive under a name. Links in a
// directory stay links.
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
		return fmt.Errorf("%s is neither file, directory nor link", file)
	}
	head, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	head.Name = name
	if e.IsDir() {
		head.Name += "/"
	}
	head.Uid, head.Gid, head.Uname, head.Gname = 0, 0, "", "" // the users here are not those there
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

// unpack reads an archive of one file or directory, whose names all begin with
// base, and puts it at the local path to: into it if that is a directory, else
// under its name. It opens everything below the directory where to lies and
// follows no link out of it; links in the archive are left out and told.
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
	_, err = io.Copy(io.Discard, r) // what pads the archive
	if err == nil && !found {
		err = errors.New("nothing was sent")
	}
	return errors.Join(err, root.Close())
}

// below is a name of the archive without the base that all of them begin with.
func below(name, base string) (string, error) {
	clean := path.Clean(name)
	if base == "." {
		if !filepath.IsLocal(clean) {
			return "", errors.New("the name leads out of the target")
		}
		return clean, nil
	}
	rest, ok := strings.CutPrefix(clean, base)
	if !ok || rest != "" && rest[0] != '/' {
		return "", fmt.Errorf("the name does not begin with %s", base)
	}
	rest = strings.TrimPrefix(rest, "/")
	if rest != "" && !filepath.IsLocal(rest) {
		return "", errors.New("the name leads out of the target")
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
		if st, err := root.Lstat(name); err == nil && !st.IsDir() { // a link is replaced, not written through
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
		_, err := fmt.Fprintf(notes, "warning: skipping %q: neither file nor directory\n", clean(name))
		return err
	}
}
