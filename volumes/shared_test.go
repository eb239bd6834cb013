package volumes

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEnsureSharedMount(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, top) })
	// The root directory is on a private mount.
	must(t, unix.Mount(top, top, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", top, "", unix.MS_PRIVATE, ""))
	root := top + "/root"
	must(t, os.MkdirAll(root+"/volume", 0o750))
	must(t, unix.Mount("tmpfs", root+"/volume", "tmpfs", 0, ""))
	must(t, os.WriteFile(root+"/volume/f", []byte("kept"), 0o600))

	for range 2 { // the second call has no effect
		must(t, EnsureSharedMount(root))
		if shared, err := isShared(root); err != nil || !shared {
			t.Fatalf("shared %v, %v", shared, err)
		}
		if read(t, root+"/volume/f") != "kept" {
			t.Error("a mounted volume is hidden")
		}
	}
	if shared, err := isShared(top); err != nil || shared {
		t.Errorf("enclosing mount: got shared %v, %v", shared, err)
	}
	if n := len(mountsBelow(t, root)); n != 3 { // the volume, the root, and the volume below it
		t.Errorf("got %d mounts, want 3", n)
	}
	if err := ReleaseSharedMount(root); err == nil {
		t.Error("ReleaseSharedMount succeeded below a mounted volume")
	}
	must(t, unix.Unmount(root+"/volume", 0))
	for range 2 {
		must(t, ReleaseSharedMount(root))
		if shared, err := isShared(root); err != nil || shared {
			t.Errorf("after the release: got shared %v, %v", shared, err)
		}
	}
}

// A root directory with mounted volumes of a kubelet is not covered by another mount.
func TestEnsureSharedMountKeepsForeignMounts(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, top) })
	must(t, unix.Mount(top, top, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", top, "", unix.MS_PRIVATE, ""))
	root := top + "/root"
	volume := root + "/pods/foreign/volumes/kubernetes.io~secret/token"
	must(t, os.MkdirAll(volume, 0o750))
	must(t, unix.Mount("tmpfs", volume, "tmpfs", 0, ""))
	if err := EnsureSharedMount(root); !errors.Is(err, ErrForeign) {
		t.Errorf("got %v", err)
	}
	if n := len(mountsBelow(t, root)); n != 1 {
		t.Errorf("got %d mounts, want 1", n)
	}
	must(t, unix.Unmount(volume, 0))
	must(t, EnsureSharedMount(root))
}

// An existing shared mount is used and kept.
func TestEnsureSharedMountKeepsExistingMount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	t.Cleanup(func() { unmountBelow(t, root) })
	must(t, unix.Mount(root, root, "", unix.MS_BIND, ""))
	must(t, unix.Mount("", root, "", unix.MS_SHARED, ""))
	must(t, EnsureSharedMount(root))
	must(t, ReleaseSharedMount(root))
	if n := len(mountsBelow(t, root)); n != 1 {
		t.Errorf("%d mounts, want 1", n)
	}
	// Also with a record of an earlier boot.
	must(t, os.WriteFile(root+"/"+sharedName, []byte("long ago 12"), 0o600))
	must(t, ReleaseSharedMount(root))
	if n := len(mountsBelow(t, root)); n != 1 {
		t.Errorf("%d mounts, want 1", n)
	}
	if err := EnsureSharedMount(root + "/none"); err == nil {
		t.Error("no error for a missing directory")
	}
}

// FuzzMountLine checks that only the optional fields determine whether a mount is shared.
func FuzzMountLine(f *testing.F) {
	f.Add("shared:7 master:1", "ext3 /dev/root rw")
	f.Add("master:1", "ext3 shared:1 rw,shared:2")
	f.Add("", "- - -")
	f.Fuzz(func(t *testing.T, optional, rest string) {
		mountLine(optional)
		want := false
		for field := range strings.FieldsSeq(optional) {
			if field == "-" {
				return // the kernel has no such field
			}
			want = want || strings.HasPrefix(field, "shared:")
		}
		id, shared := mountLine("36 35 98:0 / /mnt rw " + optional + " - " + rest)
		if id != "36" || shared != want {
			t.Errorf("%q, %q: mount %s, shared %v", optional, rest, id, shared)
		}
	})
}
