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
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// generation is part of every cache key. Increment it when a recipe changes in a way that its inputs do not
// show.
const generation = "1"

// recipe describes how to build an image.
type recipe struct {
	ref    string
	inputs func(h hash.Hash) error // hashes all inputs of make
	make   func(ctx context.Context, work string) (v1.Image, error)
}

// CacheDir returns the cache directory of the tests of this project: .cache/images next to go.mod.
func CacheDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		text, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module berth\n") {
			return filepath.Join(d, ".cache", "images"), nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod of module berth in %s or above", dir)
		}
	}
}

// get returns the archive of the recipe in dir and builds it if it does not exist. A file lock ensures that
// only one process builds it.
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
		return a, fmt.Errorf("build image %s: %w", r.ref, err)
	}
	return a, write(a.Path, r.ref, img)
}

var invalidFileChars = regexp.MustCompile(`[^a-z0-9.]+`)

func (r recipe) path(dir string) (Archive, error) {
	h := sha256.New()
	fmt.Fprintln(h, generation, r.ref, runtime.GOARCH)
	if err := r.inputs(h); err != nil {
		return Archive{}, err
	}
	name := invalidFileChars.ReplaceAllString(r.ref, "-") + "-" + hex.EncodeToString(h.Sum(nil))[:16] + ".tar"
	return Archive{Ref: r.ref, Path: filepath.Join(dir, name)}, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lock waits for the file lock with the given name and takes it.
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

// hashFile adds the content of a file to h.
func hashFile(h hash.Hash, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(h, f)
	return err
}
