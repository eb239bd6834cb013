package offline

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// Sizes of what is read into memory: descriptions alone, which are JSON.
const (
	maxDescription  = 4 << 20
	maxDescriptions = 32 << 20 // of one archive
)

// blob is one file of an archive that the runtime has now.
type blob struct {
	digest digest.Digest
	size   int64
	gzip   bool
	text   []byte // of a description; else nil
}

// archive is what one pass through a file has found.
type archive struct {
	files    map[string]blob   // by path
	links    map[string]string // path to path
	byDigest map[digest.Digest]blob
}

// at returns a file by the path that another file of the archive has for it.
func (a *archive) at(name string) (blob, bool) {
	name = path.Clean(name)
	for range 8 {
		if b, ok := a.files[name]; ok {
			return b, true
		}
		to, ok := a.links[name]
		if !ok {
			break
		}
		name = to
	}
	return blob{}, false
}

// brokenError says what is wrong with a file, whatever the runtime does.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

func broken(format string, args ...any) error { return &brokenError{fmt.Errorf(format, args...)} }

// faulty reports whether an error is the fault of the file, which no other turn mends.
// What the system says about reading it is none: the disk or its server may come
// back, files that others have open are closed.
func faulty(err error) bool {
	var wrong *brokenError
	var number syscall.Errno
	var path *fs.PathError
	return errors.As(err, &wrong) && !errors.As(err, &number) && !errors.As(err, &path)
}

// unpacked returns the tar in r, which may be gzip'd.
func unpacked(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(6)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, broken("read gzip: %w", err)
		}
		return z, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), bytes.HasPrefix(head, []byte("\xfd7zXZ")), bytes.HasPrefix(head, []byte("BZh")):
		return nil, broken("it is compressed, and not with gzip")
	}
	return b, nil
}

// read goes through a tar once and puts everything but descriptions of the archive
// itself into the store.
func read(ctx context.Context, r io.Reader, to ContentStore) (*archive, error) {
	plain, err := unpacked(r)
	if err != nil {
		return nil, err
	}
	a := &archive{files: map[string]blob{}, links: map[string]string{}, byDigest: map[digest.Digest]blob{}}
	t := tar.NewReader(plain)
	texts := int64(0)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, broken("read tar: %w", err)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname) //nolint:gosec // a key, never a file
			continue
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
			continue
		case tar.TypeReg:
		default:
			continue
		}
		b, err := a.take(ctx, t, name, h.Size, to)
		if err != nil {
			return nil, err
		}
		if texts += int64(len(b.text)); texts > maxDescriptions {
			return nil, broken("its descriptions are larger than %d bytes", maxDescriptions)
		}
		a.files[name] = b
		a.byDigest[b.digest] = b
	}
	// What follows a tar must be readable too: a gzip'd one has its checksum there.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return nil, broken("read tar: %w", err)
	}
	return a, nil
}

// own reports whether a file describes the archive and is no content of an image.
func own(name string) bool {
	switch path.Base(name) {
	case "oci-layout", "index.json", "manifest.json", "repositories", "VERSION", "json":
		return true
	}
	return false
}

// take puts one file into the store, or keeps it if it describes the archive.
func (a *archive) take(ctx context.Context, r io.Reader, name string, size int64, to ContentStore) (blob, error) {
	head := make([]byte, min(size, 2))
	if _, err := io.ReadFull(r, head); err != nil {
		return blob{}, broken("read %s: %w", name, err)
	}
	c := &checked{r: io.MultiReader(bytes.NewReader(head), r), name: name, size: size, sum: sha256.New()}
	if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
		c.want = digest.NewDigestFromEncoded(digest.SHA256, hex)
		if err := c.want.Validate(); err != nil {
			return blob{}, broken("%s is no sha256 of a blob", name)
		}
	}
	b := blob{size: size, gzip: bytes.Equal(head, []byte{0x1f, 0x8b})}
	source := io.Reader(c)
	if size <= maxDescription && (own(name) || bytes.HasPrefix(head, []byte("{"))) {
		text, err := io.ReadAll(c)
		if err != nil {
			return blob{}, err
		}
		b.text, source = text, bytes.NewReader(text)
	}
	if own(name) {
		b.digest = digest.FromBytes(b.text)
		return b, nil
	}
	expected := c.want
	if b.text != nil {
		expected = digest.FromBytes(b.text)
	}
	if known, ok := a.byDigest[expected]; ok && expected != "" {
		_, err := io.Copy(io.Discard, source)
		return known, err
	}
	if err := to.WriteBlob(ctx, name, source, expected, size); err != nil {
		return blob{}, err
	}
	if b.digest = expected; expected == "" {
		b.digest = c.digest()
	}
	return b, nil
}

// checked is the content of a file, with an error at its end if it is not what its
// name says.
type checked struct {
	r    io.Reader
	name string
	size int64
	read int64
	sum  hash.Hash
	want digest.Digest // empty: any
}

func (c *checked) digest() digest.Digest { return digest.NewDigest(digest.SHA256, c.sum) }

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	c.read += int64(n)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return n, broken("read %s: %w", c.name, err)
	case err == nil:
		return n, nil
	case c.read != c.size:
		return n, broken("read %s: %d of %d bytes are there", c.name, c.read, c.size)
	case c.want != "" && c.digest() != c.want:
		return n, broken("%s is damaged: its content is %s", c.name, c.digest())
	}
	return n, err
}
