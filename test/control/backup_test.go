package control

import (
	"archive/zip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"berth/control"
	"berth/control/storage"
)

// createBackup creates a backup of a data directory and returns its path.
func createBackup(t *testing.T, dataDir string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup.zip")
	out, err := runControl(t, append([]string{"backup", path, "--data-dir", dataDir}, args...)...)
	if err != nil {
		t.Fatalf("backup: %v\n%s", err, out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || !strings.Contains(out, path) {
		t.Errorf("backup: %v, %v\n%s", info, err, out)
	}
	return path
}

// writeConfigMaps creates numbered ConfigMaps until stop is called, which returns the number of
// acknowledged writes. acknowledged returns the current number.
func writeConfigMaps(t *testing.T, client kubernetes.Interface) (acknowledged *atomic.Int64, stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	acknowledged = &atomic.Int64{}
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ctx.Err() == nil; {
			c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", n)}, Data: map[string]string{
				"value": fmt.Sprint(n)}}
			if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, c, metav1.CreateOptions{}); err != nil &&
				!apierrors.IsAlreadyExists(err) {
				_ = pause(ctx) // retry
				continue
			}
			n++
			acknowledged.Add(1)
		}
	})
	stop = sync.OnceValue(func() int64 { cancel(); writer.Wait(); return acknowledged.Load() })
	t.Cleanup(func() { stop() })
	return acknowledged, stop
}

// TestBackupAndRestore backs up a server under load, deletes it, and restores it at the same
// address. All writes acknowledged before the backup are restored without a gap, including secrets and
// certificates. A client that watches across the restore observes the restored state.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	p := Launch(t)
	ctx := t.Context()
	client, err := p.WaitReady(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Create(ctx,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "word"},
			Data: map[string][]byte{"a": []byte("sesame")}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	acknowledged, stop := writeConfigMaps(t, client)
	for acknowledged.Load() < 20 {
		if err := pause(ctx); err != nil {
			t.Fatal(err)
		}
	}
	before := acknowledged.Load()
	path := createBackup(t, p.DataDir)
	during := acknowledged.Load()
	for acknowledged.Load() < during+20 { // these writes are lost
		if err := pause(ctx); err != nil {
			t.Fatal(err)
		}
	}
	total := stop()
	watcher := follow(t, resourceClient(dynamicClient(t, p), writtenKinds[0]))
	waitForResultWithin(t, time.Minute, "follower has all objects", func() string {
		return fmt.Sprint(watcher.size() >= int(total))
	}, "true")
	if out, err := runControl(t, "restore", path, "--data-dir", p.DataDir); err == nil || !strings.Contains(out,
		"in use by another berth-control") {
		t.Errorf("restore over a running server: %v\n%s", err, out)
	}
	p.Stop(t)
	if out, err := runControl(t, "restore", path, "--data-dir", p.DataDir); err == nil || !strings.Contains(out,
		"move it away") {
		t.Errorf("restore over an existing store: %v\n%s", err, out)
	}
	if err := os.Rename(p.DataDir, p.DataDir+".lost"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(p.DataDir + ".lost") })
	if out, err := runControl(t, "restore", path, "--data-dir", p.DataDir); err != nil || !strings.Contains(out,
		p.DataDir+" restored to its state at ") {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	p.Start(t)
	if _, err := p.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	// The previous client still works, because the CA is the same.
	got, err := client.CoreV1().Secrets("default").Get(ctx, "word", metav1.GetOptions{})
	if err != nil || string(got.Data["a"]) != "sesame" {
		t.Errorf("got secret %v, %v", got, err)
	}
	list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, c := range list.Items {
		have[c.Name] = true
	}
	n := int64(0)
	for have[fmt.Sprintf("n%d", n)] {
		n++
	}
	if n < before || n > during+1 || n >= total {
		t.Errorf("got %d restored writes without a gap; acknowledged: %d before the backup, %d at its end, %d in total",
			n, before, during, total)
	}
	waitForResultWithin(t, time.Minute, "follower has the restored objects", func() string {
		return fmt.Sprint(watcher.size() == len(list.Items))
	}, "true")
	t.Logf("%d of %d writes restored, follower listed %d times", n, total, watcher.listed)
}

// size returns the number of objects in the copy of the follower.
func (f *follower) size() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.values)
}

// TestBackupOfStoppedServer backs up a stopped server with a configuration file and an encryption key
// file in another directory.
func TestBackupOfStoppedServer(t *testing.T) {
	t.Parallel()
	dir, etc := t.TempDir(), t.TempDir()
	seal, file := filepath.Join(etc, "seal.yaml"), filepath.Join(etc, "config.yaml")
	first := Start(t, func(c *control.Config) { c.DataDir = dir })
	first.Kubectl(t, "create", "secret", "generic", "kept", "--from-literal=a=b")
	first.Stop(t)
	if err := os.Rename(filepath.Join(dir, "pki", "encryption.yaml"), seal); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\ndataDir: %s\nencryptionProviderConfig: %s\n",
		control.ConfigFileAPIVersion, control.ConfigFileKind, dir, seal)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "backup.zip")
	if err := os.WriteFile(path, []byte("an older backup"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := runControl(t, "backup", path, "--config", file); err != nil {
		t.Fatalf("backup: %v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte(text+"bindAddress: 127.0.0.1\nsecurePort: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(seal); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "new")
	out, err := runControl(t, "restore", path, "--config", file, "--data-dir", dir)
	if err != nil || !strings.Contains(out, file+" has changed since the backup: "+dir+
		"/config.yaml is the saved copy") ||
		!strings.Contains(out, seal+" does not exist: "+dir+"/encryption.yaml") {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	second := Start(t, func(c *control.Config) {
		c.DataDir, c.EncryptionConfig = dir, filepath.Join(dir,
			"encryption.yaml")
	})
	if got := second.Kubectl(t, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); got != "Yg==" {
		t.Errorf("got secret data %q", got)
	}
}

// TestInvalidBackupIsRejected restores invalid backups and checks that the data directory is not
// changed. It also checks the errors of backups that are not possible.
func TestInvalidBackupIsRejected(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	good := createBackup(t, s.DataDir)
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte(nil), text...)
	flipped[len(flipped)/2] ^= 1
	tempDir := t.TempDir()
	for name, c := range map[string]struct {
		write func(path string) error
		want  string
	}{
		"alien": {func(p string) error { return os.WriteFile(p, []byte("hello"), 0o600) },
			"not a berth-control backup"},
		"alien.zip": {func(p string) error { return archive(p, map[string]string{"a": "b"}) },
			"not a berth-control backup"},
		"cut.zip": {func(p string) error { return os.WriteFile(p, text[:len(text)/2], 0o600) }, "truncated"},
		"bit.zip": {func(p string) error { return os.WriteFile(p, flipped, 0o600) }, "damaged"},
		"newer.zip": {func(p string) error {
			return rewriteBackup(good, p,
				map[string]string{"backup.json": `{"kind":"berth-control backup","format":2,"version":"v9"}`})
		}, "newer berth-control (v9)"},
		"keyless": {func(p string) error { return rewriteBackup(good, p, map[string]string{"pki/ca.key": ""}) },
			"pki/ca.key is missing"},
		"climbing": {func(p string) error { return rewriteBackup(good, p, map[string]string{"pki/../../x": "y"}) },
			"it contains \"pki/../../x\""},
		"storeless": {func(p string) error { return rewriteBackup(good, p, map[string]string{"store.snapshot": "x"}) },
			"damaged"},
		"missing":    {func(string) error { return nil }, "no such file"},
		"empty file": {func(p string) error { return os.WriteFile(p, nil, 0o600) }, "not a berth-control backup"},
	} {
		path, dir := filepath.Join(tempDir, name), filepath.Join(tempDir, name+".dir")
		if err := c.write(path); err != nil {
			t.Fatal(err)
		}
		if out, err := runControl(t, "restore", path, "--data-dir", dir); err == nil || !strings.Contains(out, c.want) {
			t.Errorf("restore %s: got %v, want %q\n%s", name, err, c.want, out)
		}
		for _, left := range []string{"etcd", "pki", "restoring"} {
			if _, err := os.Stat(filepath.Join(dir, left)); err == nil {
				t.Errorf("restore %s: created %s", name, left)
			}
		}
	}
	if out, err := runControl(t, "backup", filepath.Join(tempDir, "x"), "--data-dir", t.TempDir()); err == nil ||
		!strings.Contains(out, "contains no store") {
		t.Errorf("backup of an empty directory: %v\n%s", err, out)
	}
	c := control.Default()
	c.Etcd = storage.ClientConfig{Endpoints: []string{"http://10.0.0.1:2379"}}
	if err := control.Backup(t.Context(), c, "", filepath.Join(tempDir, "x")); err == nil ||
		!strings.Contains(err.Error(),
			"etcdctl snapshot save") {
		t.Errorf("backup of external etcd: got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(tempDir, ".x-*")); len(left) > 0 {
		t.Errorf("backup left temporary files: %q", left)
	}
	// A restore that was interrupted by a power failure.
	broken := t.TempDir()
	if err := os.Mkdir(filepath.Join(broken, "restoring"), 0o700); err != nil {
		t.Fatal(err)
	}
	c = control.Default()
	c.DataDir, c.Listen = broken, "127.0.0.1:0"
	if _, err := control.New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "restore again") {
		t.Errorf("start after an incomplete restore: got %v", err)
	}
}

// archive writes a zip file with the given files.
func archive(path string, files map[string]string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, text := range files {
		w, err := z.Create(name)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
	}
	return z.Close()
}

// rewriteBackup copies a backup. change maps names of changed or added files to their content. A file
// with empty content is removed.
func rewriteBackup(from, to string, change map[string]string) error {
	r, err := zip.OpenReader(from)
	if err != nil {
		return err
	}
	defer r.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	z := zip.NewWriter(f)
	put := func(name, text string) error {
		w, err := z.Create(name)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, text)
		return err
	}
	for _, file := range r.File {
		text, changed := change[file.Name]
		delete(change, file.Name)
		switch {
		case changed && text == "":
		case changed:
			err = put(file.Name, text)
		default:
			err = z.Copy(file)
		}
		if err != nil {
			return err
		}
	}
	for name, text := range change {
		if err := put(name, text); err != nil {
			return err
		}
	}
	return z.Close()
}

// TestBackupContents checks the metadata in a backup, and that it contains no temporary or lock files.
func TestBackupContents(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	z, err := zip.OpenReader(createBackup(t, s.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := z.Open("backup.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var metadata struct {
		Kind   string
		Format int
		Made   time.Time
	}
	if err := json.NewDecoder(f).Decode(&metadata); err != nil || metadata.Kind != "berth-control backup" ||
		metadata.Format != 1 || time.Since(metadata.Made) > time.Hour {
		t.Errorf("got metadata %+v, %v", metadata, err)
	}
	for _, f := range z.File {
		if strings.HasPrefix(f.Name, "pki/.") || strings.Contains(f.Name, "lock") {
			t.Errorf("backup contains %s", f.Name)
		}
	}
}
