package gateway

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// FileName is that of the file in berth's state directory.
const FileName = "pod-routes.json"

func read(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && len(text) == 0 { // a file system that lost power; it still says that there was one
		text = []byte("{}")
	}
	return string(text), err
}

func parse(text string) (k known, err error) {
	return k, json.Unmarshal([]byte(text), &k)
}

func (k known) text() (string, error) {
	text, err := json.MarshalIndent(k, "", " ")
	return string(text) + "\n", err
}

// write puts the file in place at once and lastingly.
func write(file, text string) error {
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
