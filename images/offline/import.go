package offline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// errChanged means that an archive was written to while it was read. It is retried.
var errChanged = errors.New("the file changed while it was read")

// closeTimeout bounds Close after a canceled import.
const closeTimeout = 10 * time.Second

// importFile makes sure that the images of an archive exist. was is the record of an archive with
// the same name, others are the records of archives with the same size.
func (i *Importer) importFile(ctx context.Context, name string, s fileStamp, was entry,
	others []entry) (e entry, fresh bool, err error) {
	e = entry{Stamp: s}
	path := filepath.Join(i.o.Dir, name)
	if was.Stamp.same(s) {
		present, err := i.allPresent(ctx, was.Images)
		if err != nil || present {
			return was, false, err
		}
	} else if len(others) > 0 {
		// It may be a copy of a known archive, or only its modification time has changed.
		sum, err := hashOf(ctx, path)
		if err != nil {
			return e, false, err
		}
		for _, o := range others {
			if o.Digest != sum {
				continue
			}
			if present, err := i.allPresent(ctx, o.Images); err != nil || present {
				return entry{s, sum, o.Images}, false, err
			}
		}
	}
	if e.Digest, e.Images, err = i.importArchive(ctx, path); err != nil {
		return e, false, err
	}
	if now, err := statFile(path); err != nil || !now.same(s) {
		return e, false, errChanged
	}
	return e, true, nil
}

// allPresent reports whether the runtime has all of these images by name. The content is not
// compared, because a pull may have replaced it by a newer one.
func (i *Importer) allPresent(ctx context.Context, list []Image) (bool, error) {
	for _, img := range list {
		if ok, err := i.o.Runtime.HasImage(ctx, img.Name); err != nil || !ok {
			return false, err
		}
	}
	return len(list) > 0, nil
}

// importArchive imports one archive.
func (i *Importer) importArchive(ctx context.Context, path string) (sum string, list []Image, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	id := sha256.Sum256([]byte(path))
	to, err := i.o.Runtime.Import(ctx, hex.EncodeToString(id[:8]))
	if err != nil {
		return "", nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, to.Close(ctx))
	}()
	whole := sha256.New()
	in := io.TeeReader(&interruptible{ctx, f}, whole)
	a, err := readArchive(ctx, in, to)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // read to the end for the digest
	}
	if err != nil {
		return "", nil, err
	}
	found, err := a.images(ctx, to)
	if err != nil {
		return "", nil, err
	}
	for _, n := range found {
		if err := to.TagImage(ctx, n.name, n.target); err != nil {
			return "", nil, err
		}
		if img := (Image{Name: n.name, ID: string(n.id)}); !slices.Contains(list, img) {
			list = append(list, img)
		}
	}
	return digest.NewDigest(digest.SHA256, whole).String(), list, nil
}

func hashOf(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, &interruptible{ctx, f}); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return digest.NewDigest(digest.SHA256, h).String(), nil
}

// interruptible is a reader that ends with ctx.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (r *interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
