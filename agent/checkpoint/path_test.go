package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenQuarantinesNonRegularFile(t *testing.T) { // C3
	for _, tt := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"an empty directory", "is a directory", func(path string) error { return os.Mkdir(path, 0o700) }},
		{"a full directory", "is a directory", func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "x"), []byte("x"), 0o600))
		}},
		{"a named pipe", "is a named pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"a device", "is a device", func(path string) error {
			return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}},
		{"a socket", "is a socket", func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }},
		{"a link to itself", "is a symbolic link", func(path string) error { return os.Symlink(path, path) }},
		{"a link to nothing", "is a symbolic link", func(path string) error {
			return os.Symlink(path+".nothing", path)
		}},
		{"a link to a file", "is a symbolic link", func(path string) error {
			return errors.Join(os.WriteFile(path+".target", []byte("precious"), 0o600),
				os.Symlink(path+".target", path))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			if err := errors.Join(os.MkdirAll(filepath.Dir(o.Path), 0o700), tt.make(o.Path)); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(o.Path)
			if err != nil {
				t.Fatal(err)
			}
			s, quarantined, err := Open(o)
			if err != nil || quarantined == nil {
				t.Fatalf("open: %v, quarantined: %v", err, quarantined)
			}
			if !strings.Contains(quarantined.String(), tt.want) ||
				!strings.HasPrefix(quarantined.Path, o.Path+".alien-") {
				t.Errorf("got %s", quarantined)
			}
			after, err := os.Lstat(quarantined.Path)
			if err != nil || !os.SameFile(before, after) {
				t.Errorf("the quarantined file is not the original: %v", err)
			}
			stop := run(t, s)
			if err := s.Sync(t.Context(), "a", record("a")); err != nil {
				t.Error(err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(o.Path + ".target"); err == nil && string(b) != "precious" {
				t.Errorf("the target of the link is now %q", b)
			}
			if n := len(load(t, open(t, o))); n != 1 {
				t.Errorf("%d records in the new store", n)
			}
		})
	}
}

// TestOpenWithUnusablePath verifies that the store works in memory and is written as soon as the
// path is usable.
func TestOpenWithUnusablePath(t *testing.T) {
	for _, tt := range []struct {
		name string
		bad  func(path string) error
		good func(path string) error
	}{
		{"the path is a mount point", func(path string) error {
			return errors.Join(os.MkdirAll(path, 0o700), unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k"))
		}, func(path string) error { return unix.Unmount(path, 0) }},
		{"its directory is a file", func(path string) error {
			return os.WriteFile(filepath.Dir(path), []byte("x"), 0o600)
		}, func(path string) error { return os.Remove(filepath.Dir(path)) }},
		{"its directory is a link to itself", func(path string) error {
			return os.Symlink(filepath.Dir(path), filepath.Dir(path))
		}, func(path string) error { return os.Remove(filepath.Dir(path)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t)
			if err := tt.bad(o.Path); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(o.Path, unix.MNT_DETACH) })
			s, quarantined, err := Open(o)
			if err != nil || quarantined != nil {
				t.Fatalf("open: %v, quarantined: %v", err, quarantined)
			}
			stop := run(t, s)
			bad, why := s.Degraded()
			if !bad || !strings.Contains(why, filepath.Dir(o.Path)) {
				t.Errorf("degraded: %v, %q", bad, why)
			}
			if err := s.Sync(t.Context(), "a", record("a")); !errors.Is(err, ErrDegraded) {
				t.Errorf("got %v", err)
			}
			if err := tt.good(o.Path); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the store to be written", func() bool { bad, _ := s.Degraded(); return !bad })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			if n := len(load(t, open(t, o))); n != 1 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// TestUnusableReasonForUnreadableFile uses a fabricated error, because root may read any file.
func TestUnusableReasonForUnreadableFile(t *testing.T) {
	err := &os.PathError{Op: "open", Path: "berth.db", Err: unix.EACCES}
	if why, ok := unusableOf(err); !ok || why.kind != "unreadable" ||
		!strings.Contains(why.reason, "permission denied") {
		t.Errorf("got %+v", why)
	}
	for _, err := range []error{nil, ErrLocked, &os.PathError{Err: unix.ENOSPC}, &os.PathError{Err: unix.EROFS}} {
		if why, ok := unusableOf(err); ok {
			t.Errorf("%v: %+v", err, why)
		}
	}
}
