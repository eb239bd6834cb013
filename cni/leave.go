package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	defaultName   = "berth"
	defaultBridge = "cni0"
)

// RemoveDefault takes away what WriteDefault has brought about: the bridge that the
// plugins made, their book of its addresses, and last the file, by which the rest is
// known: what fails is found by the next call. It does nothing where the file is not
// berth's. No pod may be left.
func RemoveDefault(confDir string) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	return removeDefault(h, confDir, addresses)
}

func removeDefault(h *netlink.Handle, confDir, books string) error {
	file := filepath.Join(confDir, defaultFile)
	text, err := read(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !ours(text) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, bare(err))
	}
	if err := removeBridge(h); err != nil {
		return fmt.Errorf("delete the bridge %s: %w", defaultBridge, err)
	}
	if err := os.RemoveAll(filepath.Join(books, defaultName)); err != nil {
		return err
	}
	return os.Remove(file)
}

func removeBridge(h *netlink.Handle) error {
	link, err := h.LinkByName(defaultBridge)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return err
	}
	return h.LinkDel(link)
}
