package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	defaultName   = "berth"
	defaultBridge = "cni0"
)

// RemoveDefault takes away what WriteDefault has brought about: the file, the
// bridge that the plugins made of it, and their book of its addresses. It does
// nothing where the file is not berth's. No pod may be left.
func RemoveDefault(ctx context.Context, confDir string) error {
	file := filepath.Join(confDir, defaultFile)
	text, err := read(file)
	if errors.Is(err, os.ErrNotExist) || err == nil && !ours(text) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, bare(err))
	}
	if err := os.Remove(file); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(addresses, defaultName)); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", defaultBridge)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "delete", defaultBridge).CombinedOutput(); err != nil {
		return fmt.Errorf("delete the bridge %s: %w: %s", defaultBridge, err, out)
	}
	return nil
}
