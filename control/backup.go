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
	"slices"
	"strings"
	"time"

	"berth/control/storage"
)

// Entries of a backup archive, a zip file. The manifest is the first entry.
const (
	manifestName   = "backup.json"
	snapshotName   = "store.snapshot"
	pkiName        = "pki/" // prefix of the entry of each file
	configName     = "config.yaml"
	encryptionName = "encryption.yaml" // only if the file is not in pki/

	auditPolicyName, auditWebhookName = "audit-policy.yaml", "audit-webhook.kubeconfig"

	backupKind   = "berth-control backup"
	backupFormat = 1
)

// backupManifest describes an archive.
type backupManifest struct {
	Kind    string    `json:"kind"`
	Format  int       `json:"format"`
	Created time.Time `json:"made"`
	Version string    `json:"version"` // of berth-control
	// Paths of the files outside the data directory. Empty: not configured.
	Config       string `json:"config,omitempty"`
	Encryption   string `json:"encryption,omitempty"`
	AuditPolicy  string `json:"auditPolicy,omitempty"`
	AuditWebhook string `json:"auditWebhook,omitempty"`
}

// files returns the original paths of the files outside the data directory by the name of their entry.
func (m *backupManifest) files() map[string]string {
	return map[string]string{
		configName: m.Config, encryptionName: m.Encryption, auditPolicyName: m.AuditPolicy,
		auditWebhookName: m.AuditWebhook,
	}
}

// Backup writes an archive with everything that is needed to restore the server: a consistent
// snapshot of its store, its keys, and its configuration file if there is one. The server may be
// running. The file appears only when it is complete, replaces an existing file of that name, and
// has mode 0600.
func Backup(ctx context.Context, c Config, configFile, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("backup: %w", err)
		}
	}()
	if len(c.Etcd.Endpoints) > 0 {
		return fmt.Errorf(
			"objects are in the etcd cluster %v: back it up with its own tools (etcdctl snapshot save), and copy %s",
			c.Etcd.Endpoints,
			c.path("pki"),
		)
	}
	if _, err := os.Stat(c.path("etcd")); err != nil {
		return fmt.Errorf(
			"%s contains no store: is --data-dir correct? With --etcd-servers, back up the etcd cluster with its own "+
				"tools, and copy pki/: %w",
			c.DataDir,
			err,
		)
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
	manifest := backupManifest{
		Kind:         backupKind,
		Format:       backupFormat,
		Created:      time.Now().UTC().Truncate(time.Second),
		Version:      c.Version,
		Config:       configFile,
		Encryption:   c.EncryptionConfig,
		AuditPolicy:  c.Audit.PolicyFile,
		AuditWebhook: c.Audit.Webhook.ConfigFile,
	}
	text, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	z := zip.NewWriter(to)
	add := func(name string, write func(io.Writer) error) error {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate, Modified: manifest.Created})
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
	files := manifest.files()
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

// snapshot writes a snapshot of the store. It uses the running server's store, or opens the store
// if no server is running.
func (c *Config) snapshot(ctx context.Context, to io.Writer) error {
	lock, err := lockDataDir(c)
	if errors.Is(err, errDataDirInUse) {
		return storage.Snapshot(ctx, c.path("etcd"), to)
	}
	if err != nil {
		return err
	}
	defer unlockDataDir(lock)
	m, err := storage.Start(ctx, storage.Options{Dir: c.path("etcd"), Log: c.Log})
	if err != nil {
		return err
	}
	defer m.Close()
	return storage.Snapshot(ctx, c.path("etcd"), to)
}

// restoringDir is the subdirectory of the data directory that contains an unfinished restore.
const restoringDir = "restoring"

// checkRestoreComplete returns an error if the data directory contains an unfinished restore.
func (c *Config) checkRestoreComplete() error {
	if _, err := os.Lstat(c.path(restoringDir)); err != nil {
		return nil //nolint:nilerr // no restore in progress
	}
	return fmt.Errorf("data directory %s: a restore was interrupted: remove the directory and restore again", c.DataDir)
}

// RestoreResult describes a completed restore.
type RestoreResult struct {
	BackupTime time.Time
	// SavedFiles maps the original path of each file from outside the data directory to its path in
	// the data directory.
	SavedFiles map[string]string
}

// Restore creates a server's data directory from a backup. It returns an error and changes nothing
// if the directory contains a store or keys.
func Restore(file string, c Config) (_ *RestoreResult, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("restore: %w", err)
		}
	}()
	a, manifest, err := openBackup(file)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, err
	}
	lock, err := lockDataDir(&c)
	if err != nil {
		return nil, err
	}
	defer unlockDataDir(lock)
	for _, name := range []string{"etcd", "pki", restoringDir} {
		if _, err := os.Lstat(c.path(name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(
				fmt.Errorf("%s contains the %s directory of a server: move it away, or use another --data-dir",
					c.DataDir, name),
				err,
			)
		}
	}
	if err := c.unpack(&a.Reader); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", file, err), os.RemoveAll(c.path(restoringDir)))
	}
	out := &RestoreResult{BackupTime: manifest.Created, SavedFiles: map[string]string{}}
	names := []string{"pki", "etcd"} // the store last: a server would create an empty one if it were missing
	for name, original := range manifest.files() {
		if original != "" {
			names = slices.Insert(names, 0, name)
			out.SavedFiles[original] = c.path(name)
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

// openBackup opens an archive and checks that this program can restore it.
func openBackup(file string) (*zip.ReadCloser, *backupManifest, error) {
	a, err := zip.OpenReader(file)
	if errors.Is(err, zip.ErrFormat) {
		return nil, nil, fmt.Errorf("%s: not a berth-control backup, or truncated: %w", file, err)
	}
	if err != nil {
		return nil, nil, err
	}
	manifest := &backupManifest{}
	if len(a.File) > 0 && a.File[0].Name == manifestName {
		text, err := readZipFile(a.File[0])
		if err == nil {
			err = json.Unmarshal(text, manifest)
		}
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: damaged: %s: %w", file, manifestName, err), a.Close())
		}
	}
	switch {
	case manifest.Kind != backupKind:
		err = fmt.Errorf("%s: not a berth-control backup", file)
	case manifest.Format > backupFormat:
		err = fmt.Errorf("%s: created by a newer berth-control (%s): restore it with that version", file,
			manifest.Version)
	default:
		return a, manifest, nil
	}
	return nil, nil, errors.Join(err, a.Close())
}

// maxManifestSize limits what is read into memory, in bytes.
const maxManifestSize = 16 << 20

func readZipFile(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxManifestSize))
	return text, errors.Join(err, r.Close())
}

// unpack extracts an archive to the restoring directory.
func (c *Config) unpack(a *zip.Reader) error {
	for _, dir := range []string{restoringDir, restoringDir + "/pki"} {
		if err := os.Mkdir(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	for _, f := range a.File[1:] {
		key := strings.TrimPrefix(f.Name, pkiName)
		_, saved := (&backupManifest{}).files()[f.Name]
		if f.Name != snapshotName && !saved &&
			(key == f.Name || key != filepath.Base(key) || strings.HasPrefix(key, ".")) {
			return fmt.Errorf("not a berth-control backup: it contains %q", f.Name)
		}
		if err := extract(f, c.path(restoringDir, f.Name)); err != nil {
			return fmt.Errorf("damaged: %s: %w", f.Name, err)
		}
	}
	for _, needed := range []string{snapshotName, "pki/ca.key", "pki/ca.crt"} {
		if _, err := os.Stat(c.path(restoringDir, needed)); err != nil {
			return fmt.Errorf("damaged: %s is missing", needed)
		}
	}
	if err := storage.Restore(c.path(restoringDir, snapshotName), c.path(restoringDir, "etcd")); err != nil {
		return fmt.Errorf("damaged: %w", err)
	}
	return os.Remove(c.path(restoringDir, snapshotName))
}

// extract writes an entry of an archive to a file. Reading the entry verifies its checksum.
func extract(f *zip.File, to string) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	w, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, r.Close())
	}
	_, err = io.Copy(w, r) //nolint:gosec // a store has no size limit, and the archive belongs to root
	return errors.Join(err, r.Close(), w.Close())
}

// syncDir makes the directory entries survive a power failure.
func syncDir(dir string) error {
	f, err := os.Open(cmp.Or(dir, "."))
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
