package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func TestBuildIsReproducible(t *testing.T) {
	t.Parallel()
	var archives [2][]byte
	for i := range archives {
		a, err := Busybox(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if archives[i], err = os.ReadFile(a.Path); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives built from the same busybox differ")
	}
}

func TestArchiveIsBuiltOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	built := 0
	r := busybox("docker.io/library/once:1")
	inner := r.make
	r.make = func(ctx context.Context, work string) (v1.Image, error) {
		built++
		return inner(ctx, work)
	}
	for range 3 {
		if _, err := r.get(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	if built != 1 {
		t.Errorf("built %d times, want once", built)
	}
}

func TestFailedRecipeLeavesNoArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := busybox("docker.io/library/broken:1")
	r.make = func(context.Context, string) (v1.Image, error) { return nil, errors.New("no space") }
	if _, err := r.get(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "docker.io/library/broken:1") {
		t.Errorf("error %v does not name the image", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*.tar"))
	hidden, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left)+len(hidden) != 0 {
		t.Errorf("left behind: %v %v", left, hidden)
	}
}

// contents lists the paths of an image's root file system with link targets.
func contents(t *testing.T, a Archive) map[string]string {
	t.Helper()
	img, err := Load(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blobsOf(img)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blobs {
		if sum := sha256.Sum256(b.data); hex.EncodeToString(sum[:]) != b.hash.Hex {
			t.Errorf("%s: the content of blob %s does not match its digest", a.Ref, b.hash)
		}
	}
	files := map[string]string{}
	rc := mutate.Extract(img)
	defer rc.Close()
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files["/"+strings.TrimSuffix(h.Name, "/")] = h.Linkname
	}
}

func TestAllImagesAreCompleteAndValid(t *testing.T) {
	t.Parallel()
	dir, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	all, err := All(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		PauseRef:   {"/pause"},
		BusyboxRef: {"/bin/busybox", "/bin/sh", "/tmp", "/etc/passwd"},
		BashRef:    {"/bin/bash", "/bin/sleep", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"},
		TestboxRef: {"/bin/testbox", "/etc/passwd"},
		NginxRef: {"/usr/sbin/nginx", "/usr/share/nginx/html/index.html", "/etc/nginx/mime.types", "/var/lib/nginx",
			"/bin/sh"},
		StressRef: {"/usr/bin/stress", "/bin/bash"},
	}
	for _, a := range all {
		if want[a.Ref] == nil {
			continue // the same image with another name
		}
		files := contents(t, a)
		for _, f := range want[a.Ref] {
			if _, ok := files[f]; !ok {
				t.Errorf("%s has no %s", a.Ref, f)
			}
		}
		delete(want, a.Ref)
	}
	if len(want) != 0 {
		t.Errorf("images not built: %v", want)
	}
	stat := func(path string) os.FileInfo {
		i, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before := make([]os.FileInfo, len(all))
	for i, a := range all {
		before[i] = stat(a.Path)
	}
	again, err := All(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range again {
		if a != all[i] || !os.SameFile(before[i], stat(a.Path)) {
			t.Errorf("%s was built again although the cache has it", a.Ref)
		}
	}
}

func startRegistry(t *testing.T, o RegistryOptions) *Registry {
	t.Helper()
	r, err := NewRegistry(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	a, err := Busybox(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Push(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return r
}

func get(ctx context.Context, r *Registry, path, user, password string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Addr+path, nil)
	if err != nil {
		return 0, err
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

const manifest = "/v2/library/busybox/manifests/1.36"

func TestRegistryDoesNotCountPushes(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, RegistryOptions{})
	if c := r.Counts("library/busybox"); c != (Counts{}) {
		t.Errorf("counts after a push: got %+v, want none", c)
	}
	ref, err := name.NewTag(r.Addr+"/library/busybox:1.36", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	if c := r.Counts("library/busybox"); c.Manifests != 1 || c.Blobs < 2 {
		t.Errorf("counts after one pull: got %+v, want 1 manifest and at least 2 blobs", c)
	}
}

func TestRegistryRequiresCredentials(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, RegistryOptions{User: "u", Password: "p"})
	for _, c := range []struct {
		user, password string
		status         int
	}{{"", "", 401}, {"u", "wrong", 401}, {"u", "p", 200}} {
		if got, err := get(t.Context(), r, manifest, c.user, c.password); got != c.status || err != nil {
			t.Errorf("user %q with password %q: got %d (%v), want %d", c.user, c.password, got, err, c.status)
		}
	}
	if c := r.Counts("library/busybox"); c.Unauthorized != 2 || c.Manifests != 1 {
		t.Errorf("got counts %+v, want 2 unauthorized requests and 1 manifest", c)
	}
}

func TestRegistryFailsNRequests(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, RegistryOptions{})
	r.Fail(2, 503)
	for i, want := range []int{503, 503, 200} {
		if got, err := get(t.Context(), r, manifest, "", ""); got != want || err != nil {
			t.Errorf("request %d got %d (%v), want %d", i, got, err, want)
		}
	}
}

func TestBlockedBlobWaitsForRelease(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, RegistryOptions{})
	release := r.BlockBlobs("library/busybox")
	defer release()
	a, err := Busybox(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	img, err := Load(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	path := "/v2/library/busybox/blobs/" + config.String()
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error, 1)
	go func() { _, err := get(ctx, r, path, "", ""); canceled <- err }()
	waitUntil(t, func() bool { return r.Counts("library/busybox").Blocked == 1 })
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled request: got %v, want context.Canceled", err)
	}
	waitUntil(t, func() bool { return r.Counts("library/busybox").Blocked == 0 })
	served := make(chan int, 1)
	go func() { status, _ := get(t.Context(), r, path, "", ""); served <- status }()
	waitUntil(t, func() bool { return r.Counts("library/busybox").Blocked == 1 })
	release()
	if got := <-served; got != 200 {
		t.Errorf("after the release: got %d, want 200", got)
	}
}

func TestHostsTomlPointsToRegistry(t *testing.T) {
	t.Parallel()
	r := startRegistry(t, RegistryOptions{})
	dir := t.TempDir()
	if err := r.HostsToml(dir, "docker.io"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "docker.io", "hosts.toml"))
	if err != nil || !strings.Contains(string(text), `[host."http://`+r.Addr+`"]`) {
		t.Errorf("hosts.toml is %q (%v)", text, err)
	}
}

func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("condition not met after 20 s")
		}
	}
}
