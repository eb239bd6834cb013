package pki

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
)

// encryptionConfig is what the file of keys says; the key that is first seals, the others
// only open, so that a key is replaced by putting a new one before it.
const encryptionConfig = `# How secrets are encrypted in the store. Without this file they cannot be read: berth-control backup has it with the
# store; keep a copy of it apart from any other copies of that. To replace the key, put a new one above the old, restart, write every secret again, and take the old one away.
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - secretbox:
      keys:
      - name: first
        secret: %s
  - identity: {}
`

// WriteEncryptionConfig makes the file that says how secrets are sealed, with a new key.
func WriteEncryptionConfig(path string) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	return writeFile(path, fmt.Appendf(nil, encryptionConfig, base64.StdEncoding.EncodeToString(key)), 0o600)
}
