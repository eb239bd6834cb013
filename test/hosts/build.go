package hosts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// RepoRoot returns the root of the checkout that this program runs in.
func RepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module berth\n") {
			return dir, nil
		}
	}
	return "", errors.New("not below a checkout of berth: no go.mod with module berth above the working directory")
}

// cache returns a directory in the checkout that git ignores.
func cache(name string) (string, error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(repo, ".cache", name)
	return dir, os.MkdirAll(dir, 0o755)
}

const containerdModule = "github.com/containerd/containerd/v2"

// Cached returns the directory top/key of the checkout's cache. The first caller has fill create
// its content, in a directory that is renamed when fill succeeds. All other callers wait, in other
// processes too.
func Cached(top, key string, fill func(dir string) error) (dir string, err error) {
	parent, err := cache(top)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(parent, key)
	return dir, withLock(filepath.Join(parent, "lock"), func() error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		tmp, err := os.MkdirTemp(parent, "building-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		if err := fill(tmp); err != nil {
			return err
		}
		if err := os.Chmod(tmp, 0o755); err != nil {
			return err
		}
		return os.Rename(tmp, dir)
	})
}

// Containerd2 returns a directory with containerd 2.x, its shim and ctr, built at most once per
// version of the module file and of Go, also with concurrent callers. Different builds have
// different directory names.
func Containerd2(ctx context.Context) (dir string, err error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "hosts", "containerd2")
	key, err := ModuleKey(module, buildTags)
	if err != nil {
		return "", err
	}
	return Cached("containerd2", key, func(dir string) error {
		if err := goBuild(ctx, module, "0", "-trimpath", "-tags", buildTags, "-ldflags", "-s -w", "-o", dir+"/",
			containerdModule+"/cmd/containerd", containerdModule+"/cmd/containerd-shim-runc-v2", containerdModule+
				"/cmd/ctr"); err != nil {
			return fmt.Errorf("build containerd: %w", err)
		}
		return nil
	})
}

// Runc returns a directory with a runc that supports user namespaces, built like Containerd2.
// Debian 12 has an older one. It is linked to this machine's C library and libseccomp.
func Runc(ctx context.Context) (dir string, err error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "hosts", "runc")
	key, err := ModuleKey(module, "seccomp")
	if err != nil {
		return "", err
	}
	return Cached("runc", key, func(dir string) error {
		if err := goBuild(ctx, module, "1", "-trimpath", "-tags", "seccomp", "-ldflags", "-s -w", "-o", dir+"/",
			"github.com/opencontainers/runc"); err != nil {
			return fmt.Errorf("build runc: %w", err)
		}
		return nil
	})
}

// ModuleKey returns a name for a build from the module's versions, Go and the build tags.
func ModuleKey(module, tags string) (string, error) {
	sum := sha256.New()
	for _, f := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(module, f))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	fmt.Fprint(sum, runtime.Version(), runtime.GOARCH, tags)
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

const buildTags = "no_btrfs no_aufs no_devmapper no_zfs"

func goBuild(ctx context.Context, dir, cgo string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// BuildProgram builds the package in a directory of the checkout as a static program.
func BuildProgram(ctx context.Context, program, dir string) error {
	return goBuild(ctx, dir, "0", "-trimpath", "-ldflags", "-s -w", "-o", program, ".")
}

// Kubectl returns the path of the stock kubectl, built once per version.
func Kubectl() (string, error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, f := range []string{"test/go.mod", "test/kubectl/main.go"} {
		text, err := os.ReadFile(filepath.Join(repo, f))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	fmt.Fprint(sum, runtime.Version(), runtime.GOARCH)
	dir, err := Cached("kubectl", hex.EncodeToString(sum.Sum(nil))[:16], func(dir string) error {
		return BuildProgram(context.Background(), filepath.Join(dir, "kubectl"), filepath.Join(repo, "test", "kubectl"))
	})
	return filepath.Join(dir, "kubectl"), err
}

// KubectlEnv returns the environment for a short run of kubectl with a home directory. Without garbage
// collection up to a memory limit, kubectl takes a quarter less CPU time: most of its runs only start and end.
func KubectlEnv(home string) []string {
	return append(os.Environ(), "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "kubecache"), "GOGC=off",
		"GOMEMLIMIT=256MiB")
}

// BuildOptions select the variant of berth to build.
type BuildOptions struct {
	Race bool
	Tags []string
}

// openSourceDirs lists every directory of the checkout in this process. go test caches the result
// of a test until a file that the test process itself opened changes. Files that its children read
// do not count, and without this a change of berth would leave an old "ok" valid.
func openSourceDirs(repo string) error {
	return filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != repo && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		return err
	})
}

var builtPrograms struct {
	sync.Mutex
	paths map[string]string
}

// BuildBerth builds cmd/berth, once per process and variant, and returns the path of the program.
// Go's build cache makes a second process fast.
func BuildBerth(ctx context.Context, o BuildOptions) (string, error) {
	return buildCommand(ctx, "berth", o)
}

// BuildControl builds cmd/berth-control in the same way.
func BuildControl(ctx context.Context, o BuildOptions) (string, error) {
	return buildCommand(ctx, "berth-control", o)
}

func buildCommand(ctx context.Context, command string, o BuildOptions) (string, error) {
	return buildPackage(ctx, command, ".", "./cmd/"+command, o)
}

// BuildOperator builds test/operator/websites, once per process.
func BuildOperator(ctx context.Context) (string, error) {
	return buildPackage(ctx, "websites", "test", "./operator/websites", BuildOptions{})
}

// releaseTags are the build tags of the Makefile, with which the linker leaves out unused methods.
const releaseTags = "grpcnotrace"

// buildPackage builds the package pkg of the module in the directory module of the checkout.
func buildPackage(ctx context.Context, command, module, pkg string, o BuildOptions) (string, error) {
	tags := strings.Join(slices.Sorted(slices.Values(o.Tags)), ",")
	key := command
	if o.Race {
		key += "-race"
	}
	if tags != "" {
		key += "-" + strings.ReplaceAll(tags, ",", "-")
	}
	builtPrograms.Lock()
	defer builtPrograms.Unlock()
	if path, ok := builtPrograms.paths[key]; ok {
		return path, nil
	}
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	if err := openSourceDirs(repo); err != nil {
		return "", err
	}
	dir, err := cache("berth")
	if err != nil {
		return "", err
	}
	tmp := filepath.Join(dir, fmt.Sprintf(".%s-%d", key, os.Getpid()))
	defer os.Remove(tmp)
	// The race build uses the flags of go test -race and the other build those of make build,
	// to share their cached packages.
	args, cgo := []string{"-trimpath"}, "0"
	if o.Race {
		args, cgo = []string{"-race"}, "1"
	} else {
		tags = strings.TrimPrefix(tags+","+releaseTags, ",")
	}
	args = append(args, "-ldflags", "-s -w", "-tags", tags, "-o", tmp, pkg)
	path := filepath.Join(dir, key)
	if os.Getenv("BERTH_PREBUILT") != "" {
		// make test has just built all variants. go build would take a CPU-second to find them up to date.
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	err = withLock(filepath.Join(dir, key+".lock"), func() error {
		// go build does not link again if the output is up to date: start with the program of another process.
		if err := copyFile(tmp, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := goBuild(ctx, filepath.Join(repo, module), cgo, args...); err != nil {
			return err
		}
		// Running processes keep the old file: rename replaces the name only.
		return os.Rename(tmp, path)
	})
	if err != nil {
		return "", err
	}
	if builtPrograms.paths == nil {
		builtPrograms.paths = map[string]string{}
	}
	builtPrograms.paths[key] = path
	return path, nil
}

// copyFile copies a program. As in WriteProgram, no fork may happen meanwhile.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// WriteProgram writes a program or script to execute. It blocks forks meanwhile: a child that is
// forked at that moment holds the file open for writing until its exec, and a file that is open for
// writing cannot be executed ("text file busy").
func WriteProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// PreviousRelease is the commit of the release before this one: the last one with the old names of
// packages, flags and fields.
const PreviousRelease = "eef280dac6665919fa839cb9b3157d2c02f2eb74"

// BuildPreviousRelease returns a directory with berth and berth-control of PreviousRelease, built once
// from the history of the checkout.
func BuildPreviousRelease(ctx context.Context) (dir string, err error) {
	repo, err := RepoRoot()
	if err != nil {
		return "", err
	}
	key := PreviousRelease[:12] + "-" + runtime.Version() + "-" + runtime.GOARCH
	return Cached("release", key, func(dir string) error {
		source, err := os.MkdirTemp("", "berth-release-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(source)
		archive := filepath.Join(source, "source.tar")
		for _, c := range [][]string{
			{"git", "-C", repo, "archive", "-o", archive, PreviousRelease},
			{"tar", "-xf", archive, "-C", source},
		} {
			if out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("get the source of the previous release (the checkout needs its history): %w\n%s",
					err, out)
			}
		}
		return goBuild(ctx, source, "0", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/",
			"./cmd/berth", "./cmd/berth-control")
	})
}
