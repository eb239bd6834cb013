package node

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"berth/cri/criconfig"
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

// PodResolvConf reads the resolver configuration that pods inherit from the host.
type PodResolvConf struct {
	File, Fallback HostFile // Fallback is used if File has no name server that pods can reach

	last atomic.Pointer[string] // the file used last by Current; empty: none could be read
}

// SetPaths sets the paths of the files. With an empty file, pods inherit no configuration. An empty
// fallback is not used.
func (p *PodResolvConf) SetPaths(file, fallback string) {
	p.File.Path, p.Fallback.Path = file, fallback
}

// Read returns the current configuration and the file that it was read from. The file is empty if
// pods inherit none.
func (p *PodResolvConf) Read() (r criconfig.ResolvConf, file string, err error) {
	if p.File.Path == "" {
		return r, "", nil
	}
	text, err := p.File.Read()
	if err != nil {
		return r, "", err
	}
	r = criconfig.ParseResolvConf(string(text))
	if p.Fallback.Path == "" || len(r.Nameservers) == 0 || r.ReachableFromPod() {
		return r, p.File.Path, nil
	}
	if text, err := p.Fallback.Read(); err == nil {
		if other := criconfig.ParseResolvConf(string(text)); other.ReachableFromPod() {
			return other, p.Fallback.Path, nil
		}
	}
	return r, p.File.Path, nil
}

// Current returns the current configuration, which can change while berth is running. It logs an
// unreadable file and the use of the fallback, once each.
func (p *PodResolvConf) Current(log *slog.Logger) criconfig.ResolvConf {
	r, file, err := p.Read()
	switch last := p.last.Swap(&file); {
	case err != nil:
		if last == nil || *last != "" {
			log.Warn("host resolver configuration unavailable", "err", err)
		}
	case file == p.Fallback.Path && file != "" && (last == nil || *last != file):
		log.Info("host resolver uses a loopback address, pods get the fallback resolver configuration",
			"servers", r.Nameservers, "file", file)
	}
	return r
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
