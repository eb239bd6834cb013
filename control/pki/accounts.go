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

// ServiceAccountKeys are the key that signs the tokens of service accounts, made
// when it is not there, and the public halves of those that did before and whose
// tokens are still good.
func (a *Authority) ServiceAccountKeys() (signs *SigningKey, former []crypto.PublicKey, err error) {
	if signs, err = loadOrCreateKey(a.path(serviceAccountKeyFile)); err != nil {
		return nil, nil, fmt.Errorf("service accounts: %w", err)
	}
	files, err := filepath.Glob(a.path(retiredKeyPattern))
	if err != nil {
		return nil, nil, fmt.Errorf("service accounts: %w", err)
	}
	for _, path := range files {
		key, err := loadOrCreateKey(path)
		if err != nil {
			return nil, nil, fmt.Errorf("service accounts: former %w", err)
		}
		former = append(former, key.Public())
	}
	return signs, former, nil
}

// RetireServiceAccountKey puts the key of the directory among the former ones: the
// next start of the server makes another. It answers the former one's file.
func RetireServiceAccountKey(dir string, now time.Time) (former string, err error) {
	former = filepath.Join(dir, "service-account-"+now.UTC().Format(retiredKeyTimeFormat)+".key")
	if _, err := os.Lstat(former); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("retire the key of service accounts: %s is in the way", former)
	}
	if err := os.Rename(filepath.Join(dir, serviceAccountKeyFile), former); err != nil {
		return "", fmt.Errorf("retire the key of service accounts: %w", err)
	}
	return former, nil
}
