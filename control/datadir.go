package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"

	"berth/control/pki"
)

// errDataDirInUse means that a server is running on the data directory.
var errDataDirInUse = errors.New("in use by another berth-control")

// lockDataDir locks the data directory against a second server, which would replace the sockets of
// the first before it found the store in use.
func lockDataDir(c *Config) (*os.File, error) {
	path := c.path("lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errDataDirInUse
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("data directory %s: %w", c.DataDir, err)
	}
	return f, nil
}

// loadEncryptionConfig loads the EncryptionConfiguration. At the first start it creates one with a
// new key.
func loadEncryptionConfig(ctx context.Context, c *Config) (encryptionconfig.StaticTransformers, error) {
	path := c.EncryptionConfig
	if path == "" {
		path = c.path("pki", "encryption.yaml")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := pki.WriteEncryptionConfig(path); err != nil {
				return nil, err
			}
		}
	}
	config, err := encryptionconfig.LoadEncryptionConfig(ctx, path, false, "berth-control")
	if err != nil {
		return nil, fmt.Errorf("encryption configuration %s: %w", path, err)
	}
	return config.Transformers, nil
}
