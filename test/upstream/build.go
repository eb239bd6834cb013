package upstream

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"berth/test/hosts"
)

// packages maps program names to packages of Kubernetes and etcd.
var packages = map[string]string{
	"etcd": "go.etcd.io/etcd/server/v3", "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	"nonewprivs":              "k8s.io/kubernetes/test/images/nonewprivs",
}

// Names returns the names of all programs.
func Names() (out []string) {
	for name := range packages {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// Module returns the directory of the module that pins the version of Kubernetes.
func Module() (string, error) {
	repo, err := hosts.RepoRoot()
	return filepath.Join(repo, "test", "conformance", "upstream"), err
}

// Build builds the named programs, once per version of Kubernetes and Go, and returns the directory that contains
// them. The first build takes minutes.
func Build(ctx context.Context, names ...string) (dir string, err error) {
	module, err := Module()
	if err != nil {
		return "", err
	}
	key, err := hosts.ModuleKey(module, "")
	if err != nil {
		return "", err
	}
	return hosts.Cached("upstream", key+"-"+strings.Join(names, "-"), func(dir string) error {
		return BuildIn(ctx, dir, names...)
	})
}

// BuildIn builds the named programs in a directory.
func BuildIn(ctx context.Context, dir string, names ...string) error {
	for _, name := range names {
		if packages[name] == "" {
			return fmt.Errorf("unknown program %q", name)
		}
		if err := Go(ctx, "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, name), packages[name]); err != nil {
			return err
		}
	}
	return nil
}

// Go runs the go command in the module.
func Go(ctx context.Context, args ...string) error {
	module, err := Module()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", args[len(args)-1], err, out)
	}
	return nil
}
