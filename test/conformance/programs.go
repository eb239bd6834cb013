package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/test/hosts"
)

// programs are the paths of the built programs.
type programs struct {
	berth, control, kubectl string
	upstream                string // directory of the components of Kubernetes
}

func (p *programs) of(name string) string { return filepath.Join(p.upstream, name) }

// suite runs the test program. The test program leaves temporary files: they are in a directory below dir that
// is removed when it has exited.
func (p *programs) suite(ctx context.Context, dir string, run func(*exec.Cmd) ([]byte, error),
	args ...string) (out []byte, err error) {
	temp, err := os.MkdirTemp(dir, "tmp-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	cmd := exec.CommandContext(ctx, p.of(suite), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TMPDIR="+temp)
	return run(cmd)
}

// packages maps program names to packages of Kubernetes and etcd.
var packages = map[string]string{
	"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	"nonewprivs":              "k8s.io/kubernetes/test/images/nonewprivs",
}

// suite is the name of the test program.
const suite = "e2e.test"

func build(ctx context.Context) (*programs, error) {
	berth, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		return nil, err
	}
	control, err := hosts.BuildControl(ctx, hosts.BuildOptions{})
	if err != nil {
		return nil, err
	}
	kubectl, err := hosts.Kubectl()
	if err != nil {
		return nil, err
	}
	upstream, err := buildUpstream(ctx)
	return &programs{berth, control, kubectl, upstream}, err
}

// buildUpstream builds the components and tests of Kubernetes, once per version of Kubernetes and Go.
func buildUpstream(ctx context.Context) (dir string, err error) {
	repo, err := hosts.RepoRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(repo, "test", "conformance", "upstream")
	key, err := hosts.ModuleKey(module, "")
	if err != nil {
		return "", err
	}
	return hosts.Cached("conformance", key, func(dir string) error {
		for name, pkg := range packages {
			if err := goTool(ctx, module, "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, name),
				pkg); err != nil {
				return err
			}
		}
		return goTool(ctx, module, "test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", filepath.Join(dir, suite),
			"k8s.io/kubernetes/test/e2e")
	})
}

func goTool(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[len(args)-1], err, out)
	}
	return nil
}
