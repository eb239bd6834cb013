package uninstall

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/nodeconfig"
	"berth/systemd/install"
)

func removal(host string, c *nodeconfig.Config, keepConfig bool) install.RemovalSpec {
	o := Options{
		Config: c, Host: host, KeepConfig: keepConfig,
		Service: install.Spec{Name: "berth", ConfigFile: "/etc/berth/config.yaml", Layout: install.LocalLayout},
	}
	return o.Removal()
}

// A configured directory such as /run or /etc/ssl can contain files of other programs.
func TestUninstallRemovesOnlyOwnFilesFromConfiguredDirectories(t *testing.T) {
	defaultDir := &nodeconfig.Config{
		RootDir: nodeconfig.DefaultRootDir, StateDir: nodeconfig.DefaultStateDir, Socket: nodeconfig.DefaultSocket,
		CertDir: nodeconfig.DefaultCertDir,
	}
	host := t.TempDir() // without a kubelet
	l := removal(host, defaultDir, false)
	for _, dir := range []string{
		"/var/lib/berth", "/run/berth", "/var/lib/kubelet/pki", "/var/lib/kubelet/pods", "/etc/berth",
	} {
		if !slices.Contains(l.Trees, dir) {
			t.Errorf("%s is not removed: trees %q", dir, l.Trees)
		}
	}
	if slices.Contains(l.Trees, "/var/lib/kubelet") {
		t.Error("other files in /var/lib/kubelet are removed")
	}
	dir := t.TempDir()
	state, socket, certs := filepath.Join(dir, "state"), filepath.Join(dir, "run"), filepath.Join(dir, "certs")
	own := []string{
		state + "/berth.db", state + "/berth.db.damaged-20260102T030405Z", state + "/installation",
		state + "/images.json",
		state + "/pod-routes.json", state + "/local-addresses.json", socket + "/b.sock",
		certs + "/kubelet-client-2026-01-02-03-04-05.pem", certs + "/kubelet-client-current.pem",
		certs + "/kubelet-client.key.tmp",
		certs + "/kubelet-server-2026-01-02-03-04-05.pem", certs + "/kubelet-server-current.pem",
		certs + "/kubelet.crt",
		certs + "/kubelet.key",
	}
	for _, file := range append(
		[]string{state + "/foreign.db", certs + "/foreign.pem", certs + "/kubelet-client.pem.txt"}, own...,
	) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	configured := &nodeconfig.Config{RootDir: "/data", StateDir: state, Socket: socket + "/b.sock", CertDir: certs}
	l = removal(host, configured, true)
	defaultDirs := []string{"/var/lib/berth", "/run/berth"} // the previous default
	if want := append(
		[]string{"/data/pods", "/data/device-plugins", "/data/plugins_registry", "/data/pod-resources",
			"/data/image_manager", state + "/commands"}, defaultDirs...,
	); !slices.Equal(
		l.Trees,
		want,
	) {
		t.Errorf("trees %q, want %q", l.Trees, want)
	}
	slices.Sort(l.Files)
	if slices.Sort(own); !slices.Equal(l.Files, own) {
		t.Errorf("files %q, want %q", l.Files, own)
	}
	for _, dir := range []string{state, state + "/images", state + "/networks", socket, certs, "/data/plugins",
		"/data/plugins/kubernetes.io/csi", "/data/local-volumes"} {
		if !slices.Contains(l.EmptyDirs, dir) {
			t.Errorf("%s is not removed when empty: %q", dir, l.EmptyDirs)
		}
	}
	if slices.Index(l.EmptyDirs, state+"/networks/results") > slices.Index(l.EmptyDirs, state+"/networks") ||
		slices.Index(l.EmptyDirs, state+"/networks") > slices.Index(l.EmptyDirs, state) {
		t.Errorf("a directory is removed before its content: %q", l.EmptyDirs)
	}
}

// The root directory can also be that of a kubelet, whose pods must survive an uninstall.
func TestUninstallKeepsForeignPods(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	c := &nodeconfig.Config{
		RootDir: root, StateDir: filepath.Join(root, "state"), Socket: filepath.Join(root, "run/b.sock"),
		CertDir: filepath.Join(root, "pki"),
	}
	for _, dir := range []string{"pods/own", "pods/foreign/volumes", "pods/.trash-removed", "device-plugins"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "pods/own/.berth"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	below := func(trees []string) (out []string) {
		for _, tree := range trees {
			if rest, ok := strings.CutPrefix(tree, root+"/"); ok && !strings.HasPrefix(rest, "state") {
				out = append(out, rest)
			}
		}
		slices.Sort(out)
		return out
	}
	got := below(removal(root, c, false).Trees)
	if want := []string{"pods/.trash-removed", "pods/own"}; !slices.Equal(got, want) {
		t.Errorf("with a foreign pod: got %q, want %q", got, want)
	}
	if err := os.RemoveAll(filepath.Join(root, "pods/foreign")); err != nil {
		t.Fatal(err)
	}
	got = below(removal(root, c, false).Trees)
	if want := []string{"device-plugins", "image_manager", "plugins_registry", "pod-resources",
		"pods"}; !slices.Equal(got, want) {
		t.Errorf("without foreign pods: got %q, want %q", got, want)
	}
}

// A kubelet without pods, such as that of a drained node after a handback, still needs its certificates: its
// bootstrap token has expired.
func TestUninstallKeepsFilesOfKubeletWithoutPods(t *testing.T) {
	t.Parallel()
	for _, file := range []string{
		"/usr/lib/systemd/system/kubelet.service", "/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml",
		"/data/kubelet/cpu_manager_state",
	} {
		host := t.TempDir()
		err := errors.Join(os.MkdirAll(filepath.Dir(host+file), 0o755), os.WriteFile(host+file, nil, 0o600))
		if err != nil {
			t.Fatal(err)
		}
		for _, rootDir := range []string{nodeconfig.DefaultRootDir, "/data/kubelet"} {
			if strings.HasPrefix(file, "/data/") && rootDir == nodeconfig.DefaultRootDir {
				continue // the kubelet of another node
			}
			c := &nodeconfig.Config{
				RootDir: rootDir, StateDir: nodeconfig.DefaultStateDir, Socket: nodeconfig.DefaultSocket,
				CertDir: nodeconfig.DefaultCertDir,
			}
			l := removal(host, c, false)
			for _, path := range append(l.Trees, l.Files...) {
				if strings.HasPrefix(path, nodeconfig.DefaultRootDir) || strings.HasPrefix(path, "/data/") {
					t.Errorf("with %s and the root directory %s: %s is removed", file, rootDir, path)
				}
			}
		}
	}
}
