package imagepull_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/images"
	testimages "berth/test/images"
)

// containerd is a private containerd that pulls from a registry on loopback.
type containerd struct {
	service  runtimeapi.ImageServiceClient
	registry *testimages.Registry
	log      string
}

const host = "registry.test" // registry of all images in these tests; the name does not resolve

// startContainerd starts a containerd with its own directories. It and everything it created are
// removed at the end of the test.
func startContainerd(t *testing.T, o testimages.RegistryOptions) *containerd {
	t.Helper()
	return startContainerdIn(t, shortDir(t), o)
}

// shortDir returns a temporary directory with a short path, for unix sockets. The path of
// t.TempDir may be too long.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "images-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmountBelow(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unmountBelow removes the mounts that a killed containerd left behind.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", at, err)
			}
		}
	}
}

func startContainerdIn(t *testing.T, dir string, o testimages.RegistryOptions) *containerd {
	t.Helper()
	reg, err := testimages.NewRegistry(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reg.Close() })
	if err := reg.HostsToml(filepath.Join(dir, "certs.d"), host); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.internal.v1.opt"]
[debug]
  level = "warn"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = %q
`, dir+"/root", dir+"/state", dir+"/sock", dir+"/certs.d")
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	c := &containerd{registry: reg, log: dir + "/log"}
	c.run(t, dir)
	conn, err := grpc.NewClient("unix://"+dir+"/sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	c.service = runtimeapi.NewImageServiceClient(conn)
	waitFor(t, "containerd is ready", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := c.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		return err == nil
	})
	return c
}

func (c *containerd) run(t *testing.T, dir string) {
	t.Helper()
	log, err := os.Create(c.log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("containerd", "--config", dir+"/config.toml")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			if text, err := os.ReadFile(c.log); err == nil {
				t.Logf("containerd log:\n%s", text)
			}
		}
	})
}

// push pushes an image with random content to the registry and returns its name.
func (c *containerd) push(t *testing.T, repository string) string {
	t.Helper()
	img, err := random.Image(64<<10, 2)
	if err != nil {
		t.Fatal(err)
	}
	name := host + "/" + repository + ":1"
	if err := c.registry.PushImage(t.Context(), name, img); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestPullWithContainerd(t *testing.T) {
	t.Parallel()
	c := startContainerd(t, testimages.RegistryOptions{})
	for name, test := range map[string]func(*testing.T, *containerd){
		"an image is pulled and present":         testPull,
		"a hundred waiters share one pull":       testSharedPull,
		"a missing image fails the pull":         testMissingImage,
		"a failing registry fails the pull":      testFailingRegistry,
		"an unavailable registry fails the pull": testUnavailableRegistry,
		"a canceled pull leaves nothing":         testCanceledPull,
		"an unused image is garbage collected":   testGarbageCollection,
		"a full disk fails the pull":             testFullDisk,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

func testPull(t *testing.T, c *containerd) {
	a, err := testimages.Testbox(t.Context(), imageCacheDir(t))
	if err != nil {
		t.Fatal(err)
	}
	img, err := testimages.Load(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"latest", "v2"} {
		if err := c.registry.PushImage(t.Context(), host+"/found/testbox:"+tag, img); err != nil {
			t.Fatal(err)
		}
	}
	i := newImages(t, images.Options{Service: c.service})
	if _, present, err := i.Present(t.Context(), newPod("p", 0), host+"/found/testbox", nil); present || err != nil {
		t.Errorf("before the pull: present %v, %v", present, err)
	}
	for _, name := range []string{host + "/found/testbox", host + "/found/testbox:v2",
		host + "/found/testbox@" + digest.String()} {
		got, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != config.String() || got.Ref != host+"/found/testbox@"+digest.String() || got.Size == 0 {
			t.Errorf("%s: got %+v, want ID %s and digest %s", name, got, config, digest)
		}
		if again, present, err := i.Present(t.Context(), newPod("p", 0), name, nil); !present || err != nil ||
			again.ID != got.ID || again.Ref != got.Ref {
			t.Errorf("%s after the pull: %+v %v %v", name, again, present, err)
		}
	}
}

func testSharedPull(t *testing.T, c *containerd) {
	name := c.push(t, "shared/a")
	release := c.registry.BlockBlobs("shared/a")
	defer release()
	i := newImages(t, images.Options{Service: c.service})
	results := make([]<-chan error, 100)
	for n := range results {
		results[n] = startPull(t.Context(), i, newPod(fmt.Sprint("p", n), 0), name, nil)
	}
	waitFor(t, "all pulls wait for a stalled blob", func() bool {
		p := i.ActivePulls()
		return len(p) == 1 && len(p[0].Pods) == len(results) && c.registry.Counts("shared/a").Blocked > 0
	})
	release()
	for _, result := range results {
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	if got := c.registry.Counts("shared/a").Manifests; got != 1 {
		t.Errorf("got %d manifest requests, want 1", got)
	}
}

func testMissingImage(t *testing.T, c *containerd) {
	c.push(t, "existing/a")
	i := newImages(t, images.Options{Service: c.service})
	for _, name := range []string{host + "/existing/a:2", host + "/missing/a:1"} {
		_, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil)
		checkError(t, err, plan.NotFound, "ErrImagePull")
		if !strings.Contains(err.Error(), name) {
			t.Errorf("error does not name the image: %v", err)
		}
	}
}

func testFailingRegistry(t *testing.T, _ *containerd) {
	c := startContainerd(t, testimages.RegistryOptions{})
	name := c.push(t, "fails/a")
	c.registry.Fail(1000, 503)
	i := newImages(t, images.Options{Service: c.service})
	_, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil)
	checkError(t, err, plan.Other, "ErrImagePull")
	c.registry.Fail(0, 0)
	if _, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil); err != nil {
		t.Errorf("pull after the registry recovered: %v", err)
	}
}

func testUnavailableRegistry(t *testing.T, _ *containerd) {
	c := startContainerd(t, testimages.RegistryOptions{})
	name := c.push(t, "unavailable/a")
	if err := c.registry.Close(); err != nil {
		t.Fatal(err)
	}
	i := newImages(t, images.Options{Service: c.service})
	_, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil)
	checkError(t, err, plan.Other, "ErrImagePull")
	if !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("error does not contain the cause: %v", err)
	}
}

func testCanceledPull(t *testing.T, c *containerd) {
	name := c.push(t, "canceled/a")
	release := c.registry.BlockBlobs("canceled/a")
	defer release()
	i := newImages(t, images.Options{Service: c.service})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	result := startPull(ctx, i, newPod("p", 0), name, nil)
	waitFor(t, "the blob is stalled", func() bool { return c.registry.Counts("canceled/a").Blocked > 0 })
	cancel()
	checkError(t, <-result, plan.Canceled, "ErrImagePull")
	waitFor(t, "the runtime has closed the download",
		func() bool { return c.registry.Counts("canceled/a").Blocked == 0 })
	if _, present, err := i.Present(t.Context(), newPod("p", 0), name, nil); present || err != nil {
		t.Errorf("image after a canceled pull: present %v, %v", present, err)
	}
	release()
	if _, err := i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil); err != nil {
		t.Errorf("second pull: %v", err)
	}
}

func testGarbageCollection(t *testing.T, _ *containerd) {
	c := startContainerd(t, testimages.RegistryOptions{})
	i := newImages(t, images.Options{Service: c.service})
	var pulled []plan.Image
	for _, repository := range []string{"gc/a", "gc/b"} {
		img, err := i.Pull(t.Context(), newPod("p", 0), pullAction(c.push(t, repository)), nil)
		if err != nil {
			t.Fatal(err)
		}
		pulled = append(pulled, img)
	}
	used, capacity, err := i.Usage(t.Context())
	if err != nil || used == 0 || used > capacity {
		t.Errorf("usage %d of %d, %v", used, capacity, err)
	}
	done, err := i.FreeSpace(t.Context(),
		images.GCOptions{InUse: func() map[string]bool {
			return map[string]bool{pulled[1].ID: true}
		}}, func() bool { return false })
	if err != nil || len(done.Removed) != 1 || done.Removed[0].ID != pulled[0].ID {
		t.Errorf("got %+v %v, want %s removed", done, err, pulled[0].ID)
	}
	for n, repository := range []string{"gc/a", "gc/b"} {
		if _, present, err := i.Present(t.Context(), newPod("p", 0), host+"/"+repository+":1",
			nil); present != (n == 1) ||
			err != nil {
			t.Errorf("%s: present %v, %v", repository, present, err)
		}
	}
}

func testFullDisk(t *testing.T, _ *containerd) {
	dir := shortDir(t)
	if err := os.Mkdir(dir+"/root", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir+"/root", "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	c := startContainerdIn(t, dir, testimages.RegistryOptions{})
	img, err := random.Image(8<<20, 1)
	if err != nil {
		t.Fatal(err)
	}
	name := host + "/full/a:1"
	if err := c.registry.PushImage(t.Context(), name, img); err != nil {
		t.Fatal(err)
	}
	i := newImages(t, images.Options{Service: c.service})
	_, err = i.Pull(t.Context(), newPod("p", 0), pullAction(name), nil)
	checkError(t, err, plan.NoSpace, "ErrImagePull")
}

func TestPullWithCredentialsAndContainerd(t *testing.T) {
	t.Parallel()
	c := startContainerd(t, testimages.RegistryOptions{User: "valid", Password: "password-of-valid"})
	secrets := plan.Objects{
		secretRef("invalid"): dockerConfig(map[string]string{host + "/team": "invalid"}),
		secretRef("valid"):   dockerConfig(map[string]string{host: "valid"}),
		secretRef("other"):   dockerConfig(map[string]string{"quay.io": "valid"}),
	}
	i := newImages(t, images.Options{Service: c.service})
	for n, tc := range []struct {
		name    string
		secrets []string
		valid   bool
	}{
		{"without a secret", nil, false},
		{"with invalid credentials", []string{"invalid"}, false},
		{"with a secret for another registry", []string{"other"}, false},
		{"with a missing secret", []string{"missing"}, false},
		{"with valid credentials", []string{"valid"}, true},
		{"with valid credentials after invalid ones", []string{"invalid", "missing", "valid"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			name := c.push(t, fmt.Sprint("team/a", n))
			img, err := i.Pull(t.Context(), newPod("p", 0, tc.secrets...), pullAction(name), secrets)
			if tc.valid {
				if err != nil || img.ID == "" {
					t.Errorf("%+v %v", img, err)
				}
				return
			}
			checkError(t, err, plan.Denied, "ErrImagePull")
			if strings.Contains(err.Error(), "password") {
				t.Errorf("error contains a password: %v", err)
			}
		})
	}
}

func imageCacheDir(t *testing.T) string {
	t.Helper()
	dir, err := testimages.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
