package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestHostFileReturnsCurrentContent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &HostFile{Path: filepath.Join(dir, "resolv.conf")}
	is := func(want string) {
		t.Helper()
		if text, err := f.Read(); err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	put("a", "one")
	if err := os.Symlink("a", f.Path); err != nil { // as systemd-resolved does
		t.Fatal(err)
	}
	is("one")
	is("one")
	put("a", "another")
	is("another")
	put("b", "renamed")
	if err := os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	is("renamed")
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if text, err := f.Read(); !errors.Is(err, fs.ErrNotExist) || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
}
