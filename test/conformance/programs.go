package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/test/hosts"
	"berth/test/upstream"
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
	components, err := buildUpstream(ctx)
	return &programs{berth, control, kubectl, components}, err
}

// buildUpstream builds the components and tests of Kubernetes, once per version of Kubernetes and Go.
func buildUpstream(ctx context.Context) (dir string, err error) {
	module, err := upstream.Module()
	if err != nil {
		return "", err
	}
	key, err := hosts.ModuleKey(module, hosts.HelmModule)
	if err != nil {
		return "", err
	}
	return hosts.Cached("conformance", key, func(dir string) error {
		if err := upstream.BuildIn(ctx, dir, upstream.Names()...); err != nil {
			return err
		}
		if err := errors.Join(copyCertificates(ctx, module, dir), hosts.InstallHelm(ctx, dir)); err != nil {
			return err
		}
		return upstream.Go(ctx, "test", "-c", "-vet=off", "-ldflags", "-s -w", "-o", filepath.Join(dir, suite),
			"k8s.io/kubernetes/test/e2e")
	})
}

// copyCertificates copies the certificate of the agnhost image, which tests request from its web server, to dir.
func copyCertificates(ctx context.Context, module, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off")
	source, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list -m k8s.io/kubernetes: %w", err)
	}
	from := filepath.Join(strings.TrimSpace(string(source)), "test", "images", "agnhost", "porter")
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
