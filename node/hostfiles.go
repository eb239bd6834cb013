package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// HostFile caches a small file of the host that others write, such as resolv.conf. It is safe for
// concurrent use.
type HostFile struct {
	Path string

	mu   sync.Mutex
	was  os.FileInfo // stat of the cached file; nil: nothing is cached
	text []byte
}

// Read returns the content of the file. It reads an unchanged file only once.
func (f *HostFile) Read() ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, err := os.Stat(f.Path)
	if err != nil {
		f.was, f.text = nil, nil
		return nil, err
	}
	if f.was != nil && os.SameFile(f.was, now) && f.was.Size() == now.Size() && f.was.ModTime().Equal(now.ModTime()) {
		return f.text, nil
	}
	f.was = nil // a write during the read changes the time, so the file is read again
	if f.text, err = os.ReadFile(f.Path); err == nil {
		f.was = now
	}
	return f.text, err
}

// InstallationFile is the name of the file with the installation ID in the state directory.
const InstallationFile = "installation"

// InstallationID returns the random ID of this installation, which is stored in the state
// directory. Unlike the machine ID it differs between machines that were cloned from one image.
func InstallationID(stateDir string) (string, error) {
	path := filepath.Join(stateDir, InstallationFile)
	text, err := os.ReadFile(path)
	if id := strings.TrimSpace(string(text)); err == nil && id != "" {
		return id, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("installation ID: %w", err)
	}
	id := strings.ToLower(rand.Text())
	if err := os.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("installation ID: %w", err)
	}
	return id, nil
}
