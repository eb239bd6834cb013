package mountinfo

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	m, ok := parse(`36 35 98:0 /mnt1 /mnt/a\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue`)
	if !ok || m.Root != "/mnt1" || m.Point != "/mnt/a b" || m.Source != "/dev/root" ||
		!slices.Equal(m.Options, []string{"rw", "noatime"}) ||
		!slices.Equal(m.SuperOptions, []string{"rw", "errors=continue"}) {
		t.Errorf("%+v %v", m, ok)
	}
	for _, line := range []string{"", "36 35 98:0", "36 35 98:0 / /mnt rw - ext3"} {
		if m, ok := parse(line); ok {
			t.Errorf("%q: %+v", line, m)
		}
	}
}

func TestAtFollowsLinksOfTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b")
	if err := os.MkdirAll(filepath.Join(dir, "m"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := At(filepath.Join(dir, "m")); ok || err != nil {
		t.Errorf("before the mount: %v %v", ok, err)
	}
	for _, source := range []string{"first", "second"} {
		if err := unix.Mount(source, filepath.Join(dir, "m"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(filepath.Join(dir, "m"), 0); err != nil {
				t.Error(err)
			}
		})
	}
	link := dir + "-link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := At(filepath.Join(link, "m")); !ok || err != nil || m.Source != "second" {
		t.Errorf("%+v %v %v", m, ok, err)
	}
	if _, ok, err := At(filepath.Join(dir, "none", "m")); ok || err != nil {
		t.Errorf("path that does not exist: %v %v", ok, err)
	}
}
