package vm

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestTakeoverFromKubeadm runs the commands of docs/replace-the-kubelet.md on a node that is made as kubeadm
// makes it: the real kubelet with its unit, flags, configuration, certificates and static pods, the systemd
// cgroup driver and cgroup v2. The node takes part in a cluster of berth-control on the same machine. The
// machine reboots between takeover and handback.
func TestTakeoverFromKubeadm(t *testing.T) {
	if os.Getenv("BERTH_TORTURE") == "" {
		t.Skip("builds the kubelet: make torture PKGS=./test/vm RUN=TestTakeoverFromKubeadm")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Minute)
	defer cancel()
	extra := makeKubeadmDir(ctx, t)
	h, err := makeHost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(ctx, h, size{memory: "3G", extra: "512M", timeout: 30 * time.Minute}, t.TempDir(), extra)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"kubeadm", "kubeadm-rebooted"} {
		if !t.Run(set, func(t *testing.T) { runChecks(ctx, t, m, set) }) {
			return
		}
	}
}

// makeKubeadmDir creates a directory with the programs, the files of kubeadm and the page of the
// documentation. It has no unit of berth, which the takeover installs.
func makeKubeadmDir(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	for name, build := range map[string]func() (string, error){
		"berth-to-install": func() (string, error) { return hosts.BuildBerth(ctx, hosts.BuildOptions{}) },
		"berth-control":    func() (string, error) { return hosts.BuildControl(ctx, hosts.BuildOptions{}) },
		"kubelet":          func() (string, error) { return hosts.BuildKubelet(ctx) },
		"kubectl":          hosts.Kubectl,
	} {
		program, err := build()
		if err == nil {
			err = copyFile(filepath.Join(dir, name), program)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const page = "replace-the-kubelet.md"
	if err := copyFile(filepath.Join(dir, page), filepath.Join(repo, "docs", page)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "kubeadm"),
		os.DirFS(filepath.Join(repo, "node", "handover", "testdata", "kubeadm"))); err != nil {
		t.Fatal(err)
	}
	buildChecks(ctx, t, dir)
	return dir
}
