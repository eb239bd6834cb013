package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"k8s.io/apiserver/pkg/server/options/encryptionconfig"

	"berth/control/pki"
)

// loadEncryptionConfig reads which resources are encrypted in the store, by name, by group or all,
// and makes the file that says so, with a new key, at the first start.
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
		return nil, fmt.Errorf("encryption of secrets: %s: %w", path, err)
	}
	return config.Transformers, nil
}
