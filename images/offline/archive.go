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

// Limits of what is read into memory: only metadata, which is JSON.
const (
	maxMetadataFile = 4 << 20
	maxMetadata     = 32 << 20 // per archive
)

// blob is a file of an archive that is in the content store.
type blob struct {
	digest digest.Digest
	size   int64
	gzip   bool
	text   []byte // of metadata; otherwise nil
}

// archive is the result of reading an archive.
type archive struct {
	files    map[string]blob   // by path
	links    map[string]string // target path by path
	byDigest map[digest.Digest]blob
}

// resolve returns a file by the path that another file of the archive references.
func (a *archive) resolve(name string) (blob, bool) {
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

// archiveError is a fault of the archive itself.
type archiveError struct{ err error }

func (e *archiveError) Error() string { return e.err.Error() }
func (e *archiveError) Unwrap() error { return e.err }

func archiveErrorf(format string, args ...any) error {
	return &archiveError{fmt.Errorf(format, args...)}
}

// isArchiveFault reports whether an error is permanent because the archive is at fault. I/O errors
// reported by the system are not: the disk or the file server may recover.
func isArchiveFault(err error) bool {
	var fault *archiveError
	var errno syscall.Errno
	var path *fs.PathError
	return errors.As(err, &fault) && !errors.As(err, &errno) && !errors.As(err, &path)
}

// decompress returns the tar stream in r, which may be gzip-compressed.
func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(6)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, archiveErrorf("read gzip: %w", err)
		}
		return z, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}), bytes.HasPrefix(head,
		[]byte("\xfd7zXZ")), bytes.HasPrefix(head, []byte("BZh")):
		return nil, archiveErrorf("it is compressed, but not with gzip")
	}
	return b, nil
}

// readArchive reads a tar once and writes everything except metadata of the archive itself to the
// content store.
func readArchive(ctx context.Context, r io.Reader, to ContentStore) (*archive, error) {
	plain, err := decompress(r)
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
			return nil, archiveErrorf("read tar: %w", err)
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
		b, err := a.storeFile(ctx, t, name, h.Size, to)
		if err != nil {
			return nil, err
		}
		if texts += int64(len(b.text)); texts > maxMetadata {
			return nil, archiveErrorf("its metadata is larger than %d bytes", maxMetadata)
		}
		a.files[name] = b
		a.byDigest[b.digest] = b
	}
	// The rest of the stream must be readable too: the checksum of gzip is at its end.
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return nil, archiveErrorf("read tar: %w", err)
	}
	return a, nil
}

// isMetadata reports whether a file describes the archive and is not content of an image.
func isMetadata(name string) bool {
	switch path.Base(name) {
	case "oci-layout", "index.json", "manifest.json", "repositories", "VERSION", "json":
		return true
	}
	return false
}

// storeFile writes a file to the content store, or keeps it in memory if it describes the archive.
func (a *archive) storeFile(ctx context.Context, r io.Reader, name string, size int64, to ContentStore) (blob, error) {
	head := make([]byte, min(size, 2))
	if _, err := io.ReadFull(r, head); err != nil {
		return blob{}, archiveErrorf("read %s: %w", name, err)
	}
	c := &checkedReader{r: io.MultiReader(bytes.NewReader(head), r), name: name, size: size, sum: sha256.New()}
	if hex, ok := strings.CutPrefix(name, "blobs/sha256/"); ok {
		c.want = digest.NewDigestFromEncoded(digest.SHA256, hex)
		if err := c.want.Validate(); err != nil {
			return blob{}, archiveErrorf("%s is not the sha256 digest of a blob", name)
		}
	}
	b := blob{size: size, gzip: bytes.Equal(head, []byte{0x1f, 0x8b})}
	source := io.Reader(c)
	if size <= maxMetadataFile && (isMetadata(name) || bytes.HasPrefix(head, []byte("{"))) {
		text, err := io.ReadAll(c)
		if err != nil {
			return blob{}, err
		}
		b.text, source = text, bytes.NewReader(text)
	}
	if isMetadata(name) {
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

// checkedReader reads a file and returns an error at its end if the content does not match its
// name.
type checkedReader struct {
	r    io.Reader
	name string
	size int64
	read int64
	sum  hash.Hash
	want digest.Digest // empty: not checked
}

func (c *checkedReader) digest() digest.Digest { return digest.NewDigest(digest.SHA256, c.sum) }

func (c *checkedReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.sum.Write(p[:n])
	c.read += int64(n)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return n, archiveErrorf("read %s: %w", c.name, err)
	case err == nil:
		return n, nil
	case c.read != c.size:
		return n, archiveErrorf("read %s: only %d of %d bytes exist", c.name, c.read, c.size)
	case c.want != "" && c.digest() != c.want:
		return n, archiveErrorf("%s is damaged: its content is %s", c.name, c.digest())
	}
	return n, err
}
