package offline

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// recordsVersion is of the file's format.
const recordsVersion = 1

// stamp tells whether a file is the one that was looked at before.
type stamp struct {
	Inode uint64    `json:"inode"`
	Size  int64     `json:"size"`
	Mtime time.Time `json:"mtime"`
}

func (s stamp) same(o stamp) bool {
	return s.Inode == o.Inode && s.Size == o.Size && s.Mtime.Equal(o.Mtime)
}

// entry is what a file had in it when it was imported.
type entry struct {
	Stamp  stamp   `json:"stamp"`
	Digest string  `json:"digest"` // of the whole file, sha256:…
	Images []Image `json:"images"`
}

type recordsFile struct {
	Version int              `json:"version"`
	Files   map[string]entry `json:"files"` // by name in the folder
}

// loadRecords reads them. A file that is not there, or that cannot be understood, is
// an empty one: at worst archives are read again, whose content is then found.
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
		return map[string]entry{}, fmt.Errorf("records of imported images %s: %w", path, err)
	}
	if f.Files == nil {
		f.Files = map[string]entry{}
	}
	return f.Files, nil
}

// saveRecords replaces them, completely or not at all.
func saveRecords(path string, files map[string]entry) error {
	text, err := json.MarshalIndent(recordsFile{recordsVersion, files}, "", " ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".images-*")
	if err != nil {
		return fmt.Errorf("write records of imported images: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // unless it got its name
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
		return fmt.Errorf("write records of imported images: %w", err)
	}
	return nil
}
