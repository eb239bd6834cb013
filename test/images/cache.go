package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// generation is part of every cache key: raise it when a recipe changes in a
// way that its inputs do not show.
const generation = "1"

// recipe says how an image is made.
type recipe struct {
	ref    string
	inputs func(h hash.Hash) error // hashes everything that make reads
	make   func(ctx context.Context, work string) (v1.Image, error)
}

// CacheDir returns the folder that the project's own tests share:
// .cache/images beside go.mod.
func CacheDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return filepath.Join(d, ".cache", "images"), nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod in %s or above", dir)
		}
	}
}

// get returns the recipe's archive in dir and makes it first when it is not
// there. One process makes it, others wait.
func (r recipe) get(ctx context.Context, dir string) (Archive, error) {
	a, err := r.path(dir)
	if err != nil {
		return a, fmt.Errorf("image %s: %w", r.ref, err)
	}
	if fileExists(a.Path) {
		return a, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return a, err
	}
	unlock, err := lock(a.Path + ".lock")
	if err != nil {
		return a, fmt.Errorf("image %s: %w", r.ref, err)
	}
	defer unlock()
	if fileExists(a.Path) {
		return a, nil
	}
	work, err := os.MkdirTemp(dir, ".work-*")
	if err != nil {
		return a, err
	}
	defer os.RemoveAll(work)
	img, err := r.make(ctx, work)
	if err != nil {
		return a, fmt.Errorf("make image %s: %w", r.ref, err)
	}
	return a, write(a.Path, r.ref, img)
}

var notInNames = regexp.MustCompile(`[^a-z0-9.]+`)

func (r recipe) path(dir string) (Archive, error) {
	h := sha256.New()
	fmt.Fprintln(h, generation, r.ref, runtime.GOARCH)
	if err := r.inputs(h); err != nil {
		return Archive{}, err
	}
	name := notInNames.ReplaceAllString(r.ref, "-") + "-" + hex.EncodeToString(h.Sum(nil))[:16] + ".tar"
	return Archive{Ref: r.ref, Path: filepath.Join(dir, name)}, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lock takes the file lock of name and waits for it.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

// hashFile adds the content of a file of this machine to h.
func hashFile(h hash.Hash, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}
