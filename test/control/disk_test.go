package control

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control"
)

// disk mounts a small file system for a test.
func disk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs a file system of its own")
	}
	dir, err := os.MkdirTemp("", "berth-control-disk-") //nolint:usetesting // which removes all of it, and something may still be mounted there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestAlmostFullDisk leaves the store little room: writes are refused in words,
// reads and deletes go on, and with room all goes on.
func TestAlmostFullDisk(t *testing.T) {
	t.Parallel()
	dir := disk(t)
	s := Start(t, func(c *control.Config) { c.DataDir = dir })
	create(t, s, "default", settings("before", "a", "b"))
	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast, 30<<20)
	maps := s.Client.CoreV1().ConfigMaps("default")
	write := func(ctx context.Context) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "more-"}}, metav1.CreateOptions{})
		return err
	}
	err := try(t, write, func(err error) bool { return err != nil })
	if text := err.Error(); !strings.Contains(text, dir) || !strings.Contains(text, "almost full") || !strings.Contains(text, "writes are refused") {
		t.Errorf("a write is told %v", err)
	}
	if got, err := maps.Get(t.Context(), "before", metav1.GetOptions{}); err != nil || got.Data["a"] != "b" {
		t.Errorf("reading on a full disk: %v, %v", got, err)
	}
	if err := maps.Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	_ = try(t, write, func(err error) bool { return err == nil })
}

// TestFullDisk takes all room away at once while objects are written. The server
// may end, with a reason that one can act on; all that it acknowledged is there
// when it runs again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	p := &Process{DataDir: disk(t), Listen: freeAddress(t), log: filepath.Join(t.TempDir(), "log")}
	p.Start(t)
	defer p.end(t)
	client, err := p.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(p.DataDir, "ballast")
	var acknowledged []string
	for i := range 300 {
		if i == 100 {
			fill(t, ballast, 0)
		}
		c := settings("c"+strconv.Itoa(i), "a", strings.Repeat("x", 10000))
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
			break
		}
		acknowledged = append(acknowledged, c.Name)
	}
	select {
	case <-p.ended:
		if text, err := p.Wait(t); err == nil || !strings.Contains(text, "no space is left on its file system") {
			t.Errorf("the server ends with %v and says\n%s", err, text)
		}
	case <-time.After(2 * time.Second):
		p.Kill(t)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.Start(t)
	if client, err = p.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range acknowledged {
		if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("acknowledged and not there: %v", err)
		}
	}
	t.Logf("%d writes were acknowledged", len(acknowledged))
}

// fill writes a file until only so many bytes are left.
func fill(t *testing.T, path string, left int64) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n := int64(fs.Bavail)*fs.Bsize - left; n > 0; n -= 4096 {
		if _, err := f.Write(make([]byte, min(n, 4096))); err != nil {
			return // others write too
		}
	}
}

// try does something until its result is as wanted, and returns that.
func try(t *testing.T, do func(context.Context) error, wanted func(error) bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := do(ctx)
		if wanted(err) {
			return err
		}
		if pause(ctx) != nil {
			t.Fatalf("in the end: %v", err)
		}
	}
}

// TestDamagedStore breaks a store: the server says what is wrong and where, and
// changes nothing in it.
func TestDamagedStore(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"the database": filepath.Join("member", "snap", "db"),
		"the log":      filepath.Join("member", "wal", "0000000000000000-0000000000000000.wal"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Launch(t)
			if _, err := p.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			kubectl(t, p, "create", "configmap", "kept")
			p.Stop(t)
			path := filepath.Join(p.DataDir, "etcd", "data", file)
			whole := damage(t, path)
			p.Start(t)
			text, err := p.Wait(t)
			if err == nil || !strings.Contains(text, p.DataDir) || !strings.Contains(text, "cannot be opened") || strings.Contains(text, "goroutine ") {
				t.Fatalf("the server ends with %v and says\n%s", err, text)
			}
			// With the file as it was, all is there.
			if err := os.WriteFile(path, whole, 0o600); err != nil {
				t.Fatal(err)
			}
			p.Start(t)
			if _, err := p.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			kubectl(t, p, "get", "configmap", "kept")
		})
	}
}

// damage overwrites the beginning of a file and answers what the whole was.
func damage(t *testing.T, path string) []byte {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	broken := append([]byte(strings.Repeat("damage! ", 2048)), whole[2048*8:]...)
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	return whole
}

func kubectl(t *testing.T, p *Process, args ...string) {
	t.Helper()
	if out, err := RunKubectl(t, p.Kubeconfig(), "", args...); err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}
