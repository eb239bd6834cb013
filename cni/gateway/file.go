package gateway

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// FileName is the name of the file in berth's state directory.
const FileName = "pod-routes.json"

func readFile(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && len(text) == 0 { // the file was truncated by a power loss; its existence still counts
		text = []byte("{}")
	}
	return string(text), err
}

func parse(text string) (k checkpoint, err error) {
	return k, json.Unmarshal([]byte(text), &k)
}

func (k checkpoint) text() (string, error) {
	text, err := json.MarshalIndent(k, "", " ")
	return string(text) + "\n", err
}

// writeFile replaces the file atomically and durably.
func writeFile(file, text string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	next := file + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(next, file)
}

func removeFile(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
