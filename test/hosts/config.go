package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Version selects a containerd.
type Version string

const (
	Version16 Version = "1.6" // Debian's
	Version2  Version = "2.x" // built from the module in containerd2/
)

// Versions lists the containerd versions that the project is tested with.
func Versions() []Version { return []Version{Version16, Version2} }

// DividedVersions returns the versions for a test that expects the same of all. To save time, such tests are
// divided between the versions by their names. With BERTH_TORTURE, each runs on all of them.
func DividedVersions(test string) []Version {
	all := Versions()
	if os.Getenv("BERTH_TORTURE") != "" {
		return all
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(test))
	i := int(h.Sum32() % uint32(len(all)))
	return all[i : i+1]
}

const cniBinDir = "/usr/lib/cni" // Debian's

func (r *record) configFile() string { return filepath.Join(r.run(), "config.toml") }
func (r *record) certsDir() string   { return filepath.Join(r.Dir, "certs.d") }

// config returns containerd's configuration. Everything that containerd would write outside of the
// host's directories by default is moved inside.
func (r *record) config() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	cri := `plugins."io.containerd.grpc.v1.cri"`
	images := cri
	if r.Version == Version16 {
		line("version = 2")
	} else {
		line("version = 3")
		cri, images = `plugins."io.containerd.cri.v1.runtime"`, `plugins."io.containerd.cri.v1.images"`
	}
	line("root = %q\nstate = %q\ntemp = %q", r.root(), r.state(), filepath.Join(r.run(), "tmp"))
	line("disabled_plugins = [%s]", `"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", `+
		`"io.containerd.snapshotter.v1.zfs", `+
		`"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", `+
		`"io.containerd.snapshotter.v1.erofs", `+
		`"io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"`)
	line("[grpc]\naddress = %q", r.socket())
	line("[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q", filepath.Join(r.Dir, "opt"))
	line("[%s]\nrestrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true", cri)
	if r.Version == Version2 {
		// berth reads usage from cgroup files and does not query containerd. By default
		// containerd collects it once a second, 4 % of a core for 50 pods.
		line("stats_collect_period = \"1m\"")
	}
	if r.Disk {
		// Pods are ranked by their use of the disk, which containerd measures every 10 s by default.
		if r.Version == Version2 {
			line("[%s]", images)
		}
		line("stats_collect_period = 1")
	}
	bin := fmt.Sprintf("bin_dir = %q", r.plugins())
	if r.Version == Version16 {
		line("sandbox_image = %q", r.Sandbox)
	} else {
		bin = fmt.Sprintf("bin_dirs = [%q]\nuse_internal_loopback = true", r.plugins())
		line("[%s.pinned_images]\nsandbox = %q", images, r.Sandbox)
		// The default limit applies to all images together: three stalled pulls would block
		// all others.
		line("[plugins.\"io.containerd.transfer.v1.local\"]\nmax_concurrent_downloads = 32")
		if !r.Upgraded { // shims from before the upgrade listen in the directory of 1.6
			line("[plugins.\"io.containerd.shim.v1.manager\"]\nsocket_dir = %q", r.shimSockets())
		}
	}
	line("[%s.cni]\n%s\nconf_dir = %q", cri, bin, r.confDir())
	line("[%s.registry]\nconfig_path = %q", images, r.certsDir())
	line("[%s.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"", cri)
	line("[%s.containerd.runtimes.runc.options]\nRoot = %q", cri, filepath.Join(r.run(), "runc"))
	for _, name := range r.Handlers {
		line("[%s.containerd.runtimes.%s]\nruntime_type = \"io.containerd.runc.v2\"", cri, name)
		line("[%s.containerd.runtimes.%s.options]\nRoot = %q", cri, name, r.handlerDir(name))
	}
	return b.String()
}

func (r *record) handlerDir(name string) string { return filepath.Join(r.run(), "runc-"+name) }

// HandlerDir returns the directory in which runc, as the named handler, keeps its containers.
func (h *Host) HandlerDir(name string) string {
	return filepath.Join(h.slot.handlerDir(name), "k8s.io")
}

// conflist returns the host's network configuration: its own bridge, addresses of its own range
// stored in its own directory, and host ports.
func (r *record) conflist() ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       r.network(),
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": r.bridge(), "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": r.addresses(),
					"ranges": []any{[]any{map[string]any{"subnet": r.PodCIDR.String(),
						"gateway": r.gateway().String()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
}

func (r *record) conflistFile() string { return filepath.Join(r.confDir(), "10-berth-host.conflist") }

// WriteCNI writes the host's network configuration.
func (h *Host) WriteCNI() error {
	text, err := h.conflist()
	if err != nil {
		return err
	}
	// The temporary file is in the same directory: containerd 1.6 misses a file that is moved
	// in from another directory.
	tmp := h.conflistFile() + ".tmp"
	if err := os.WriteFile(tmp, text, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, h.conflistFile())
}

// makePlugins links the machine's CNI plugins into the host's directory, where a test can replace a
// plugin.
func (r *record) makePlugins() error {
	all, err := os.ReadDir(cniBinDir)
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := os.Symlink(filepath.Join(cniBinDir, p.Name()), filepath.Join(r.plugins(), p.Name())); err != nil &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// BlockCNI makes the plugins of pods with one name hang at ADD and DEL until release is called.
func (h *Host) BlockCNI(pod string) (release func() error, err error) {
	hold := filepath.Join(h.plugins(), "hold-"+pod)
	script := fmt.Sprintf(`#!/bin/sh
case ";$CNI_ARGS;" in *";K8S_POD_NAME=%s;"*)
	i=0
	while [ -e '%s' ] && [ $i -lt 6000 ]; do sleep 0.05; i=$((i+1)); done
esac
exec %s/portmap
`, pod, hold, cniBinDir)
	for file, text := range map[string]string{hold: "", filepath.Join(h.plugins(), "portmap.new"): script} {
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			return nil, err
		}
	}
	release = func() error { return os.Remove(hold) }
	return release, os.Rename(filepath.Join(h.plugins(), "portmap.new"), filepath.Join(h.plugins(), "portmap"))
}

// RemoveCNI removes the host's network configuration. New sandboxes get no network, running ones
// keep theirs.
func (h *Host) RemoveCNI() error { return os.Remove(h.conflistFile()) }

// SetRegistry writes the hosts.toml for a registry host. It applies to the next pull.
func (h *Host) SetRegistry(host, hostsToml string) error {
	dir := filepath.Join(h.certsDir(), host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hostsToml), 0o644)
}

// CertsDir returns the directory of the hosts.toml files: HOST/hosts.toml.
func (h *Host) CertsDir() string { return h.certsDir() }
