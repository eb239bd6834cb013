package ownership

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Instance returns the value of the label that distinguishes the objects of several berths in one
// runtime. It depends only on the root directory, so that a lost store does not change it: agents
// with the same root directory are the same instance.
func Instance(rootDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(rootDir)))
	return hex.EncodeToString(sum[:8])
}
