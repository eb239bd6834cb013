package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// InstallationFile is the file of the mark, below the directory of state.
const InstallationFile = "installation"

// InstallationID is what tells this installation from others, kept in a file of the
// state directory: machines that were made from one image, or share one, have the
// same machine ID.
func InstallationID(stateDir string) (string, error) {
	path := filepath.Join(stateDir, InstallationFile)
	text, err := os.ReadFile(path)
	if id := strings.TrimSpace(string(text)); err == nil && id != "" {
		return id, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("this installation's mark: %w", err)
	}
	id := strings.ToLower(rand.Text())
	if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("this installation's mark: %w", err)
	}
	return id, nil
}
