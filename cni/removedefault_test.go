package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	kernelns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The file is removed last, so that the next call completes a failed removal. No program of the
// host is required.
func TestRemoveDefaultCanBeRepeated(t *testing.T) {
	name := fmt.Sprintf("berth%dleave", os.Getpid())
	netns(t, name)
	run(t, "ip", "-n", name, "link", "add", defaultBridge, "type", "bridge")
	t.Setenv("PATH", "")
	ns, err := kernelns.GetFromName(name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	confDir, books := t.TempDir(), t.TempDir()
	file, book := filepath.Join(confDir, defaultFile), filepath.Join(books, defaultName)
	if err := WriteDefault(confDir, nil, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}, true); err != nil {
		t.Fatal(err)
	}
	// A directory that cannot be removed because of a mount.
	if err := os.MkdirAll(filepath.Join(book, "10.9.0.2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(book, "10.9.0.2"), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	unmount := func() { _ = unix.Unmount(filepath.Join(book, "10.9.0.2"), unix.MNT_DETACH) }
	defer unmount()
	there := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	if err := removeDefault(h, confDir, books); !errors.Is(err, unix.EBUSY) || !there(file) {
		t.Errorf("with a book that cannot go: %v; the file exists: %v", err, there(file))
	}
	unmount()
	if err := removeDefault(h, confDir, books); err != nil || there(file) || there(book) {
		t.Errorf("the second time: %v; the file exists: %v, the book: %v", err, there(file), there(book))
	}
	if _, err := h.LinkByName(defaultBridge); err == nil {
		t.Error("the bridge exists")
	}
	if err := removeDefault(h, confDir, books); err != nil {
		t.Errorf("with nothing left: %v", err)
	}
}
