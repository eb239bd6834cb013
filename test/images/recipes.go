package images

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Names of the images that All builds.
const (
	PauseRef        = "registry.k8s.io/pause:3.10"
	BusyboxRef      = "docker.io/library/busybox:1.36"
	BashRef         = "docker.io/library/bash:5.2" // busybox with bash as its /bin/sh
	TestboxRef      = "docker.io/berth/testbox:1"
	TestboxUserRef  = "docker.io/berth/testbox:user"  // TestboxRef as user 1000:1000
	TestboxNamedRef = "docker.io/berth/testbox:named" // TestboxRef as the non-numeric user "app"
	NginxRef        = "docker.io/library/nginx:1.14.2"
	StressRef       = "docker.io/polinux/stress:latest"
	FluentdRef      = "quay.io/fluentd_elasticsearch/fluentd:v5.0.1" // the test program under this name
)

// Pause builds the sandbox image: a static program that reaps orphans and exits on SIGTERM.
func Pause(ctx context.Context, dir string) (Archive, error) { return pause().get(ctx, dir) }

// Busybox builds an image with Debian's static busybox and links for its applets.
func Busybox(ctx context.Context, dir string) (Archive, error) {
	return busybox(BusyboxRef).get(ctx, dir)
}

// Bash builds a busybox image with bash as its shell. bash passes on environment variables with names that
// busybox's shell drops, for example data-1.
func Bash(ctx context.Context, dir string) (Archive, error) { return bash().get(ctx, dir) }

// Testbox builds the image of the test program. Package berth/test/images/testbox documents its steps.
func Testbox(ctx context.Context, dir string) (Archive, error) {
	return testbox(TestboxRef, "").get(ctx, dir)
}

// Nginx builds a replacement for the nginx image of the Kubernetes documentation.
func Nginx(ctx context.Context, dir string) (Archive, error) { return nginx(NginxRef).get(ctx, dir) }

// Stress builds a replacement for the polinux/stress image of the Kubernetes documentation.
func Stress(ctx context.Context, dir string) (Archive, error) { return stress().get(ctx, dir) }

// Static builds an image that runs a static program of this machine.
func Static(ctx context.Context, dir, ref, program string, args ...string) (Archive, error) {
	return recipe{
		ref: ref,
		inputs: func(h hash.Hash) error {
			fmt.Fprintln(h, args)
			return hashFile(h, program)
		},
		make: func(context.Context, string) (v1.Image, error) {
			t := tree{}
			t.accounts()
			if err := t.copyFile("/program", program); err != nil {
				return nil, err
			}
			return build(v1.Config{Entrypoint: append([]string{"/program"}, args...), Env: []string{searchPath},
				WorkingDir: "/"}, t)
		},
	}.get(ctx, dir)
}

// All returns all images and builds the missing ones in dir.
func All(ctx context.Context, dir string) ([]Archive, error) {
	recipes := []recipe{
		pause(), busybox(BusyboxRef), busybox("docker.io/library/busybox:1.28"),
		busybox("docker.io/library/busybox:latest"), bash(),
		testbox(TestboxRef, ""), testbox(TestboxUserRef, "1000:1000"), testbox(TestboxNamedRef, "app"),
		nginx(NginxRef), nginx("docker.io/library/nginx:1.16.1"), nginx("docker.io/library/nginx:latest"), stress(),
		testbox(FluentdRef, ""),
	}
	archives, errs := make([]Archive, len(recipes)), make([]error, len(recipes))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, r := range recipes {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			archives[i], errs[i] = r.get(ctx, dir)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return archives, nil
}

//go:embed pause/*.go testbox/*.go
var sources embed.FS

// searchPath is the PATH of the images' programs.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func pause() recipe {
	return recipe{
		ref:    PauseRef,
		inputs: func(h hash.Hash) error { return hashSource(h, "pause") },
		make: func(ctx context.Context, work string) (v1.Image, error) {
			t := tree{}
			if err := t.goProgram(ctx, work, "pause", "/pause"); err != nil {
				return nil, err
			}
			return build(v1.Config{User: "65535:65535", Entrypoint: []string{"/pause"}, Env: []string{searchPath},
				WorkingDir: "/"}, t)
		},
	}
}

func testbox(ref, user string) recipe {
	return recipe{
		ref:    ref,
		inputs: func(h hash.Hash) error { return hashSource(h, "testbox") },
		make: func(ctx context.Context, work string) (v1.Image, error) {
			t := tree{}
			t.accounts()
			if err := t.goProgram(ctx, work, "testbox", "/bin/testbox"); err != nil {
				return nil, err
			}
			return build(v1.Config{User: user, Entrypoint: []string{"/bin/testbox"}, Cmd: []string{"serve"},
				Env: []string{searchPath}, WorkingDir: "/"}, t)
		},
	}
}

func busybox(ref string) recipe {
	return recipe{
		ref:    ref,
		inputs: func(h hash.Hash) error { return hashFile(h, busyboxFile) },
		make: func(ctx context.Context, _ string) (v1.Image, error) {
			t := tree{}
			if err := t.busybox(ctx); err != nil {
				return nil, err
			}
			return build(v1.Config{Cmd: []string{"sh"}, Env: []string{searchPath}, WorkingDir: "/"}, t)
		},
	}
}

func bash() recipe {
	return recipe{
		ref:    BashRef,
		inputs: hashShells,
		make: func(ctx context.Context, _ string) (v1.Image, error) {
			t := tree{}
			if err := t.bash(ctx); err != nil {
				return nil, err
			}
			return build(v1.Config{Cmd: []string{"bash"}, Env: []string{searchPath}, WorkingDir: "/"}, t)
		},
	}
}

func stress() recipe {
	return recipe{
		ref:    StressRef,
		inputs: hashShells,
		make: func(ctx context.Context, work string) (v1.Image, error) {
			root, err := unpackDebian(ctx, work, "stress")
			if err != nil {
				return nil, err
			}
			base, top := tree{}, tree{}
			if err := base.bash(ctx); err != nil {
				return nil, err
			}
			if err := top.program("/usr/bin/stress", root, "/"); err != nil {
				return nil, err
			}
			return build(v1.Config{Cmd: []string{"/bin/bash"}, Env: []string{searchPath}, WorkingDir: "/"}, base, top)
		},
	}
}

const busyboxFile = "/bin/busybox"

func hashShells(h hash.Hash) error {
	if err := hashFile(h, busyboxFile); err != nil {
		return err
	}
	return hashFile(h, "/bin/bash")
}

// busybox adds busybox, a link for each applet, and accounts.
func (t tree) busybox(ctx context.Context) error {
	if err := t.copyFile("/bin/busybox", busyboxFile); err != nil {
		return fmt.Errorf("%w (install Debian's package busybox-static)", err)
	}
	out, err := exec.CommandContext(ctx, busyboxFile, "--list").Output()
	if err != nil {
		return fmt.Errorf("list applets of busybox: %w", err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if applet != "busybox" {
			t.symlink("/bin/"+applet, "busybox")
		}
	}
	t.accounts()
	return nil
}

// bash adds busybox with bash as its shell.
func (t tree) bash(ctx context.Context) error {
	if err := t.busybox(ctx); err != nil {
		return err
	}
	delete(t, "/bin/bash")
	if err := t.program("/bin/bash", "/"); err != nil {
		return err
	}
	t.symlink("/bin/sh", "bash")
	return nil
}

// accounts adds users, groups and the directories that most programs expect.
func (t tree) accounts() {
	t.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"+
		"app:x:1001:1001:app:/home/app:/bin/sh\n")
	t.text("/etc/group", "root:x:0:\nnogroup:x:65534:\napp:x:1001:\nextra:x:2001:app\n")
	t.text("/etc/nsswitch.conf", "hosts: files dns\n")
	t.dir("/root", 0o700)
	t.dir("/home/app", 0o755)
	t.owner("/home/app", 1001, 1001)
	t.dir("/tmp", fs.ModeSticky|0o777)
	t.dir("/var/tmp", fs.ModeSticky|0o777)
	t.dir("/run", 0o755)
}

// goProgram builds a program of this package as a static binary.
func (t tree) goProgram(ctx context.Context, work, source, name string) error {
	files, err := fs.Glob(sources, source+"/*.go")
	if err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", "program"}
	for _, f := range files {
		data, err := sources.ReadFile(f)
		if err != nil {
			return err
		}
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		base := filepath.Base(f)
		if err := os.WriteFile(filepath.Join(work, base), data, 0o644); err != nil {
			return err
		}
		args = append(args, base)
	}
	cmd := exec.CommandContext(ctx, goTool(), args...)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GO111MODULE=on")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", source, err, out)
	}
	data, err := os.ReadFile(filepath.Join(work, "program"))
	t.file(name, 0o755, data)
	return err
}

func goTool() string {
	if p, err := exec.LookPath("go"); err == nil {
		return p
	}
	return "/usr/local/go/bin/go"
}

func hashSource(h hash.Hash, source string) error {
	_, _ = io.WriteString(h, runtime.Version())
	files, err := fs.Glob(sources, source+"/*.go")
	if err != nil {
		return err
	}
	for _, f := range files {
		data, err := sources.ReadFile(f)
		if err != nil {
			return err
		}
		fmt.Fprintln(h, f, len(data))
		h.Write(data)
	}
	return nil
}
