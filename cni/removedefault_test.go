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

// TestRemoveDefaultCanBeRepeated: the file is removed last, so that the next call completes a failed
// removal. No program of the host is required.
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
	confDir, ipamDir := t.TempDir(), t.TempDir()
	file, networkDir := filepath.Join(confDir, defaultFile), filepath.Join(ipamDir, defaultName)
	if err := WriteDefault(confDir, nil, []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}, true); err != nil {
		t.Fatal(err)
	}
	// A directory that cannot be removed because of a mount.
	if err := os.MkdirAll(filepath.Join(networkDir, "10.9.0.2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(networkDir, "10.9.0.2"), "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	unmount := func() { _ = unix.Unmount(filepath.Join(networkDir, "10.9.0.2"), unix.MNT_DETACH) }
	defer unmount()
	exists := func(path string) bool { _, err := os.Lstat(path); return err == nil }
	if err := removeDefault(h, confDir, ipamDir); !errors.Is(err, unix.EBUSY) || !exists(file) {
		t.Errorf("with a busy IPAM directory: got %v, file exists %v; want EBUSY, true", err, exists(file))
	}
	unmount()
	if err := removeDefault(h, confDir, ipamDir); err != nil || exists(file) || exists(networkDir) {
		t.Errorf("second call: %v; file exists %v, IPAM directory exists %v", err, exists(file), exists(networkDir))
	}
	if _, err := h.LinkByName(defaultBridge); err == nil {
		t.Error("bridge still exists")
	}
	if err := removeDefault(h, confDir, ipamDir); err != nil {
		t.Errorf("third call: %v", err)
	}
}
