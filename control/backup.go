package control

import (
	"archive/zip"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/control/storage"
)

// A backup is a zip archive of these, the first of them first.
const (
	manifestName   = "backup.json"
	snapshotName   = "store.snapshot"
	pkiName        = "pki/" // and each file of it
	configName     = "config.yaml"
	encryptionName = "encryption.yaml" // when it is not one of pki/

	backupKind   = "berth-control backup"
	backupFormat = 1
)

// backupManifest says what an archive is.
type backupManifest struct {
	Kind    string    `json:"kind"`
	Format  int       `json:"format"`
	Made    time.Time `json:"made"`
	Version string    `json:"version"` // of the program
	// Where the server had what lay outside of its data directory; empty: nothing.
	Config     string `json:"config,omitempty"`
	Encryption string `json:"encryption,omitempty"`
}

// Backup writes into one file what a server needs to begin anew where it is now: its
// store at one moment, its keys, and the configuration file, if there is one. The
// server may run meanwhile. The file is there when it is whole, and then replaces one
// of its name; only its owner may read it.
func Backup(ctx context.Context, c Config, configFile, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("backup: %w", err)
		}
	}()
	if len(c.Etcd.Endpoints) > 0 {
		return fmt.Errorf("the objects are in the etcd cluster of %v: save that with its own tools (etcdctl snapshot save), and copy %s", c.Etcd.Endpoints, c.path("pki"))
	}
	if _, err := os.Stat(c.path("etcd")); err != nil {
		return fmt.Errorf("%s holds no store: is --data-dir right? With --etcd-servers save the etcd cluster with its own tools, and copy pki/: %w", c.DataDir, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(c.archive(ctx, f, configFile), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func (c *Config) archive(ctx context.Context, to io.Writer, configFile string) error {
	note := backupManifest{Kind: backupKind, Format: backupFormat, Made: time.Now().UTC().Truncate(time.Second), Version: c.Version, Config: configFile, Encryption: c.EncryptionConfig}
	text, err := json.MarshalIndent(note, "", "  ")
	if err != nil {
		return err
	}
	z := zip.NewWriter(to)
	add := func(name string, write func(io.Writer) error) error {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: note.Made})
		if err != nil {
			return err
		}
		return write(w)
	}
	if err := add(manifestName, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return err
	}
	if err := add(snapshotName, func(w io.Writer) error { return c.snapshot(ctx, w) }); err != nil {
		return err
	}
	files := map[string]string{configName: configFile, encryptionName: c.EncryptionConfig}
	keys, err := os.ReadDir(c.path("pki"))
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.Type().IsRegular() && !strings.HasPrefix(k.Name(), ".") {
			files[pkiName+k.Name()] = c.path("pki", k.Name())
		}
	}
	for name, path := range files {
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := add(name, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
			return err
		}
	}
	return z.Close()
}

// snapshot has the store written by the server that runs on it, or opens it when none
// does.
func (c *Config) snapshot(ctx context.Context, to io.Writer) error {
	held, err := lockDataDir(c)
	if errors.Is(err, errDataDirInUse) {
		return storage.Snapshot(ctx, c.path("etcd"), to)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	m, err := storage.Start(ctx, storage.Options{Dir: c.path("etcd"), Log: c.Log})
	if err != nil {
		return err
	}
	defer m.Close()
	return storage.Snapshot(ctx, c.path("etcd"), to)
}

// restoringDir is, in the data directory, what a restore has not finished.
const restoringDir = "restoring"

// checkRestoreComplete says that a server must not begin on what a restore has left.
func (c *Config) checkRestoreComplete() error {
	if _, err := os.Lstat(c.path(restoringDir)); err != nil {
		return nil //nolint:nilerr // there is none
	}
	return fmt.Errorf("data directory %s: a restore has not come to its end there: remove the directory and restore again", c.DataDir)
}

// RestoreResult is what of a backup was not put where the server had it.
type RestoreResult struct {
	BackupTime time.Time
	// SavedFiles says, by the path where a file was, where it is now.
	SavedFiles map[string]string
}

// Restore makes a server's data directory of the file of a backup. A directory that
// holds a store or keys is left as it is.
func Restore(file string, c Config) (_ *RestoreResult, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore: %w", err)
		}
	}()
	a, note, err := openBackup(file)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, err
	}
	held, err := lockDataDir(&c)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	for _, name := range []string{"etcd", "pki", restoringDir} {
		if _, err := os.Lstat(c.path(name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%s holds a server's %s: move the directory away, or name another with --data-dir", c.DataDir, name), err)
		}
	}
	if err := c.unpack(&a.Reader); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", file, err), os.RemoveAll(c.path(restoringDir)))
	}
	out := &RestoreResult{BackupTime: note.Made, SavedFiles: map[string]string{}}
	names := []string{"pki", "etcd"} // the store last: without it the server would begin with an empty one
	for _, other := range []struct{ name, was string }{{configName, note.Config}, {encryptionName, note.Encryption}} {
		if other.was != "" {
			names = append([]string{other.name}, names...)
			out.SavedFiles[other.was] = c.path(other.name)
		}
	}
	for _, name := range names {
		if err := os.Rename(c.path(restoringDir, name), c.path(name)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(syncDir(c.DataDir), os.Remove(c.path(restoringDir))); err != nil {
		return nil, err
	}
	return out, syncDir(c.DataDir)
}

// openBackup opens an archive that this program can restore.
func openBackup(file string) (*zip.ReadCloser, *backupManifest, error) {
	a, err := zip.OpenReader(file)
	if errors.Is(err, zip.ErrFormat) {
		return nil, nil, fmt.Errorf("%s: is no backup of berth-control, or was cut off: %w", file, err)
	}
	if err != nil {
		return nil, nil, err
	}
	note := &backupManifest{}
	if len(a.File) > 0 && a.File[0].Name == manifestName {
		text, err := readZipFile(a.File[0])
		if err == nil {
			err = json.Unmarshal(text, note)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: is damaged: %s: %w", file, manifestName, err), a.Close())
		}
	}
	switch {
	case note.Kind != backupKind:
		err = fmt.Errorf("%s: is no backup of berth-control", file)
	case note.Format > backupFormat:
		err = fmt.Errorf("%s: was made by a newer berth-control (%s): restore it with that", file, note.Version)
	default:
		return a, note, nil
	}
	return nil, nil, errors.Join(err, a.Close())
}

// maxManifestSize bounds what of a backup is read into memory.
const maxManifestSize = 16 << 20

func readZipFile(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxManifestSize))
	return text, errors.Join(err, r.Close())
}

// unpack brings all that an archive has into the data directory, not yet in its place.
func (c *Config) unpack(a *zip.Reader) error {
	for _, dir := range []string{restoringDir, restoringDir + "/pki"} {
		if err := os.Mkdir(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	for _, f := range a.File[1:] {
		key := strings.TrimPrefix(f.Name, pkiName)
		if f.Name != snapshotName && f.Name != configName && f.Name != encryptionName && (key == f.Name || key != filepath.Base(key) || strings.HasPrefix(key, ".")) {
			return fmt.Errorf("is no backup of berth-control: it has %q", f.Name)
		}
		if err := extract(f, c.path(restoringDir, f.Name)); err != nil {
			return fmt.Errorf("is damaged: %s: %w", f.Name, err)
		}
	}
	for _, needed := range []string{snapshotName, "pki/ca.key", "pki/ca.crt"} {
		if _, err := os.Stat(c.path(restoringDir, needed)); err != nil {
			return fmt.Errorf("is damaged: %s is not in it", needed)
		}
	}
	if err := storage.Restore(c.path(restoringDir, snapshotName), c.path(restoringDir, "etcd")); err != nil {
		return fmt.Errorf("is damaged: %w", err)
	}
	return os.Remove(c.path(restoringDir, snapshotName))
}

// extract writes a file of an archive, whose sum is looked at by that.
func extract(f *zip.File, to string) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, r.Close())
	}
	_, err = io.Copy(w, r) //nolint:gosec // a store is as big as it is, and the file is root's own
	return errors.Join(err, r.Close(), w.Close())
}

// syncDir has the names in a directory outlive a power cut.
func syncDir(dir string) error {
	f, err := os.Open(cmp.Or(dir, "."))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
