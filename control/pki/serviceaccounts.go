package pki

import (
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	serviceAccountKeyFile = "service-account.key"
	retiredKeyPattern     = "service-account-*.key"
	retiredKeyTimeFormat  = "20060102T150405.000Z"
)

// ServiceAccountKeys returns the key that signs service account tokens, which is created if it does
// not exist, and the public keys of retired keys whose tokens are still accepted.
func (a *Authority) ServiceAccountKeys() (signs *SigningKey, former []crypto.PublicKey, err error) {
	if signs, err = loadOrCreateKey(a.path(serviceAccountKeyFile)); err != nil {
		return nil, nil, fmt.Errorf("service account key: %w", err)
	}
	files, err := filepath.Glob(a.path(retiredKeyPattern))
	if err != nil {
		return nil, nil, fmt.Errorf("service account key: %w", err)
	}
	for _, path := range files {
		key, err := loadOrCreateKey(path)
		if err != nil {
			return nil, nil, fmt.Errorf("service account key: retired %w", err)
		}
		former = append(former, key.Public())
	}
	return signs, former, nil
}

// RetireServiceAccountKey renames the signing key. The server creates a new one at its next start.
// It returns the path of the retired key.
func RetireServiceAccountKey(dir string, now time.Time) (former string, err error) {
	former = filepath.Join(dir, "service-account-"+now.UTC().Format(retiredKeyTimeFormat)+".key")
	if _, err := os.Lstat(former); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("retire service account key: %s exists already", former)
	}
	if err := os.Rename(filepath.Join(dir, serviceAccountKeyFile), former); err != nil {
		return "", fmt.Errorf("retire service account key: %w", err)
	}
	return former, nil
}
