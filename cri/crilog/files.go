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
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	rotationTimeFormat = "20060102-150405" // of a rotated file, like the kubelet
	zipSuffix          = ".gz"
	tempSuffix         = ".tmp"
)

// rotatedFile is a rotated file of a log.
type rotatedFile struct {
	path       string // without the suffix of a compressed file
	compressed bool   // the uncompressed file does not exist any more
}

func (r rotatedFile) name() string {
	if r.compressed {
		return r.path + zipSuffix
	}
	return r.path
}

// rotatedFiles lists the rotated files of a log, oldest first.
func rotatedFiles(log string) ([]rotatedFile, error) {
	entries, err := os.ReadDir(filepath.Dir(log))
	if err != nil {
		return nil, err
	}
	base := filepath.Base(log) + "."
	byPath := map[string]rotatedFile{}
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), base)
		if !ok {
			continue
		}
		stamp, zip := strings.CutSuffix(stamp, zipSuffix)
		if _, err := time.Parse(rotationTimeFormat, stamp); err != nil {
			continue
		}
		path := log + "." + stamp
		if other, ok := byPath[path]; ok {
			zip = zip && other.compressed // the uncompressed file still exists
		}
		byPath[path] = rotatedFile{path, zip}
	}
	out := make([]rotatedFile, 0, len(byPath))
	for _, r := range byPath {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b rotatedFile) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// openSnapshot opens a log and lists its rotated files consistently: all of them are older. In the
// middle of a rotation there is no current file.
func openSnapshot(log string) (f *os.File, older []rotatedFile, err error) {
	before, err := rotatedFiles(log)
	if err != nil {
		return nil, nil, err
	}
	for range maxSnapshotAttempts {
		f, err = os.Open(log)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, err
		}
		if older, err = rotatedFiles(log); err == nil && slices.EqualFunc(before, older, samePath) {
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
	return nil, nil, fmt.Errorf("%s: rotated too fast to open it", log)
}

// maxSnapshotAttempts is enough for any log: a rotation takes longer than a snapshot.
const maxSnapshotAttempts = 100

func samePath(a, b rotatedFile) bool { return a.path == b.path }

// open opens a rotated file for reading. It may have been compressed meanwhile.
func (r rotatedFile) open() (io.ReadCloser, error) {
	if !r.compressed {
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
	return gzipFile{z, f}, nil
}

type gzipFile struct {
	*gzip.Reader
	file *os.File
}

func (z gzipFile) Close() error { return errors.Join(z.Reader.Close(), z.file.Close()) }

// LogFileName returns the name of the log of an attempt in the container's directory.
func LogFileName(attempt uint32) string { return strconv.FormatUint(uint64(attempt), 10) + ".log" }

// ParseAttempt returns the attempt in the name of a log or rotated log.
func ParseAttempt(file string) (uint32, bool) {
	digits, rest, found := strings.Cut(filepath.Base(file), ".log")
	if !found || (rest != "" && rest[0] != '.') {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), err == nil && LogFileName(uint32(n)) == digits+".log"
}

const maxFileName = 255

// LinkPath returns the path below root (/var/log/containers) where log shippers expect the log of a
// container. A name that is too long for a file is truncated.
func LinkPath(root, pod, namespace, container, id string) string {
	name := pod + "_" + namespace + "_" + container + "-" + id
	if most := maxFileName - len(".log"); len(name) > most {
		for most > 0 && !utf8.RuneStart(name[most]) {
			most--
		}
		name = name[:most]
	}
	return filepath.Join(root, name+".log")
}
