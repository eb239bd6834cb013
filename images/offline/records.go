package offline

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// recordsVersion is the version of the file format.
const recordsVersion = 1

// fileStamp identifies the version of a file.
type fileStamp struct {
	Inode uint64    `json:"inode"`
	Size  int64     `json:"size"`
	Mtime time.Time `json:"mtime"`
}

func (s fileStamp) same(o fileStamp) bool {
	return s.Inode == o.Inode && s.Size == o.Size && s.Mtime.Equal(o.Mtime)
}

// entry is the content of an archive when it was imported.
type entry struct {
	Stamp  fileStamp `json:"stamp"`
	Digest string    `json:"digest"` // of the whole archive, sha256:…
	Images []Image   `json:"images"`
}

type recordsFile struct {
	Version int              `json:"version"`
	Files   map[string]entry `json:"files"` // by name in the directory
}

// loadRecords reads the records. A file that does not exist or cannot be parsed counts as empty: at
// worst, archives are read again and their content is found in the store.
func loadRecords(path string) (map[string]entry, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return map[string]entry{}, nil
	}
	var f recordsFile
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err == nil && f.Version != recordsVersion {
		err = fmt.Errorf("version %d is not %d", f.Version, recordsVersion)
	}
	if err != nil {
		return map[string]entry{}, fmt.Errorf("import records %s: %w", path, err)
	}
	if f.Files == nil {
		f.Files = map[string]entry{}
	}
	return f.Files, nil
}

// saveRecords replaces the records atomically.
func saveRecords(path string, files map[string]entry) error {
	text, err := json.MarshalIndent(recordsFile{recordsVersion, files}, "", " ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".images-*")
	if err != nil {
		return fmt.Errorf("write import records: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // no-op after the rename
	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write import records: %w", err)
	}
	return nil
}
