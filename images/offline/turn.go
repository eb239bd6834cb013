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

// errChanged says that a file was written to while it was read: it has another turn.
var errChanged = errors.New("the file changed while it was read")

// endBound bounds the end of an import that was called off.
const endBound = 10 * time.Second

// turn makes sure that a file's images are there. Was is what was imported from a
// file of its name, others what was from files of its size.
func (i *Importer) turn(ctx context.Context, name string, s stamp, was entry, others []entry) (e entry, fresh bool, err error) {
	e = entry{Stamp: s}
	path := filepath.Join(i.o.Dir, name)
	if was.Stamp.same(s) {
		there, err := i.there(ctx, was.Images)
		if err != nil || there {
			return was, false, err
		}
	} else if len(others) > 0 {
		// It may be one that is here already under another name, or was only touched.
		sum, err := hashOf(ctx, path)
		if err != nil {
			return e, false, err
		}
		for _, o := range others {
			if o.Digest != sum {
				continue
			}
			if there, err := i.there(ctx, o.Images); err != nil || there {
				return entry{s, sum, o.Images}, false, err
			}
		}
	}
	if e.Digest, e.Images, err = i.bring(ctx, path); err != nil {
		return e, false, err
	}
	if now, err := look(path); err != nil || !now.same(s) {
		return e, false, errChanged
	}
	return e, true, nil
}

// there reports whether the runtime has all of these images by name. Which content a
// name has is not asked: a pull may have brought a newer one.
func (i *Importer) there(ctx context.Context, list []Image) (bool, error) {
	for _, img := range list {
		if ok, err := i.o.Runtime.HasImage(ctx, img.Name); err != nil || !ok {
			return false, err
		}
	}
	return len(list) > 0, nil
}

// bring imports one archive.
func (i *Importer) bring(ctx context.Context, path string) (sum string, list []Image, err error) {
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endBound)
		defer cancel()
		err = errors.Join(err, to.Close(ctx))
	}()
	whole := sha256.New()
	in := io.TeeReader(&interruptible{ctx, f}, whole)
	a, err := read(ctx, in, to)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // to the end, for the digest
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

// interruptible ends a long reading with ctx.
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
