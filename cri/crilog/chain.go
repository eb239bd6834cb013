package crilog

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	stampSuffix = "20060102-150405" // of a rotated file, as the kubelet's
	zipSuffix   = ".gz"
	tempSuffix  = ".tmp"
)

// rotated is one rotated file of a log.
type rotated struct {
	path string // without the suffix of a compressed one
	zip  bool   // compressed, and the plain one is gone
}

func (r rotated) file() string {
	if r.zip {
		return r.path + zipSuffix
	}
	return r.path
}

// chain lists the rotated files of a log, oldest first.
func chain(log string) ([]rotated, error) {
	entries, err := os.ReadDir(filepath.Dir(log))
	if err != nil {
		return nil, err
	}
	base := filepath.Base(log) + "."
	byPath := map[string]rotated{}
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), base)
		if !ok {
			continue
		}
		stamp, zip := strings.CutSuffix(stamp, zipSuffix)
		if _, err := time.Parse(stampSuffix, stamp); err != nil {
			continue
		}
		path := log + "." + stamp
		if had, again := byPath[path]; again {
			zip = zip && had.zip // the plain one is still there
		}
		byPath[path] = rotated{path, zip}
	}
	out := make([]rotated, 0, len(byPath))
	for _, r := range byPath {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b rotated) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// snapshot opens a log and lists its rotated files as they are at one moment:
// all of them are older. While a rotation is half done there is no file.
func snapshot(log string) (f *os.File, older []rotated, err error) {
	before, err := chain(log)
	if err != nil {
		return nil, nil, err
	}
	for range snapshotTries {
		f, err = os.Open(log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if older, err = chain(log); err == nil && slices.EqualFunc(before, older, samePlace) {
			return f, older, nil
		}
		if f != nil {
			_ = f.Close()
		}
		if err != nil {
			return nil, nil, err
		}
		before = older
	}
	return nil, nil, fmt.Errorf("%s: rotated faster than it can be opened", log)
}

// snapshotTries is enough for any log: to rotate one takes longer than to look.
const snapshotTries = 100

func samePlace(a, b rotated) bool { return a.path == b.path }

// open opens a rotated file for reading, compressed meanwhile or not.
func (r rotated) open() (io.ReadCloser, error) {
	if !r.zip {
		f, err := os.Open(r.path)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	f, err := os.Open(r.path + zipSuffix)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return zipped{z, f}, nil
}

type zipped struct {
	*gzip.Reader
	file *os.File
}

func (z zipped) Close() error { return errors.Join(z.Reader.Close(), z.file.Close()) }
