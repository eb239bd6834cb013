package hosts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// HelmModule is the module of Helm and its version.
const HelmModule = "helm.sh/helm/v4/cmd/helm@v4.3.1"

// InstallHelm builds Helm in a directory.
func InstallHelm(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "install", "-ldflags", "-s -w", HelmModule)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOBIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go install %s: %w\n%s", HelmModule, err, out)
	}
	return nil
}

// Helm returns the path of Helm, built once per version.
func Helm(ctx context.Context) (string, error) {
	key := sha256.Sum256([]byte(HelmModule + runtime.Version() + runtime.GOARCH))
	dir, err := Cached("helm", hex.EncodeToString(key[:])[:16], func(dir string) error {
		return InstallHelm(ctx, dir)
	})
	return filepath.Join(dir, "helm"), err
}

// HelmCommand returns a command of Helm for a cluster, with its files below a directory.
func HelmCommand(ctx context.Context, program, kubeconfig, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+filepath.Join(dir, "cache"),
		"HELM_CONFIG_HOME="+filepath.Join(dir, "config"), "HELM_DATA_HOME="+filepath.Join(dir, "data"))
	return cmd
}
