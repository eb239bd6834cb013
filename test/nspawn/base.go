package nspawn

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"berth/test/hosts"
)

// recipe is this file. A change of it changes the cache key and causes a new base to be built.
//
//go:embed base.go
var recipe []byte

const (
	suite  = "bookworm"
	mirror = "http://deb.debian.org/debian"
)

// packages are installed on every host in addition to Debian's essential ones. logind needs dbus.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iptables", "iproute2",
	"kmod", "procps", "ca-certificates",
}

// containerdConfig disables the features that need cgroup controllers or privileges which machines
// that run the tests may lack.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
disable_cgroup = true
restrict_oom_score_adj = true
sandbox_image = %q
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
`

// files returns the files that are written on every host after the packages are installed.
func files(sandbox string) map[string]string {
	return map[string]string{
		"etc/machine-id":             "", // each host gets its own at the first boot
		"etc/containerd/config.toml": fmt.Sprintf(containerdConfig, sandbox),
		// A journal in memory would not contain the previous boot.
		"etc/systemd/journald.conf.d/keep.conf": "[Journal]\nStorage=persistent\nSyncIntervalSec=1s\n",
	}
}

// maskedUnits lists units that do not work or have no purpose in a container.
var maskedUnits = []string{
	"getty.target", "console-getty.service", "systemd-firstboot.service", "apt-daily.timer",
	"apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
	"systemd-timesyncd.service", "dev-hugepages.mount", "sys-kernel-debug.mount",
	"sys-kernel-tracing.mount", "sys-kernel-config.mount",
}

// makeBase returns the root file system that is the lower layer of all hosts. It is built at most
// once per recipe.
func makeBase(ctx context.Context, sandbox string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOARCH, sandbox)
	sum.Write(recipe)
	key := hex.EncodeToString(sum.Sum(nil))[:16]
	dir, err := hosts.Cached("nspawn", key, func(dir string) error { return buildBase(ctx, dir, sandbox) })
	if err != nil {
		return "", fmt.Errorf("build base image: %w", err)
	}
	removeStaleBases(dir)
	return filepath.Join(dir, "root"), nil
}

// buildBase installs the base in dir/root.
func buildBase(ctx context.Context, dir, sandbox string) error {
	program, err := exec.LookPath("debootstrap")
	if err != nil {
		program = "/usr/sbin/debootstrap" // not on every PATH
	}
	root := filepath.Join(dir, "root")
	cmd := exec.CommandContext(ctx, program, "--variant=minbase", "--include="+strings.Join(packages, ","),
		suite, root, mirror)
	// No fsync is needed: a base that is lost in a crash is built again.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "DPKG_FORCE=unsafe-io",
		"PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(root, "debootstrap", "debootstrap.log"))
		err = fmt.Errorf("debootstrap (test/deps.sh installs it): %w\n%s\n%s",
			err, tail(string(out)), tail(string(log)))
		return errors.Join(err, unmountBelow(root))
	}
	if err := unmountBelow(root); err != nil { // mounts of debootstrap
		return err
	}
	for name, text := range files(sandbox) {
		if err := writeFile(filepath.Join(root, name), text); err != nil {
			return err
		}
	}
	for _, unit := range maskedUnits {
		path := filepath.Join(root, "etc/systemd/system", unit)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink("/dev/null", path); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Join(root, "var/cache/apt")),
		os.RemoveAll(filepath.Join(root, "var/lib/apt/lists")))
}

// removeStaleBases removes the bases of other recipes, which have hundreds of megabytes each. Errors
// are ignored: the next call tries again.
func removeStaleBases(dir string) {
	others, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*"))
	for _, other := range others {
		if other != dir && filepath.Base(other) != "lock" && !strings.HasPrefix(filepath.Base(other), "building-") {
			_ = os.RemoveAll(other)
		}
	}
}

func writeFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

// tail returns the last 6 KiB of a text.
func tail(text string) string {
	if cut := len(text) - 6<<10; cut > 0 {
		text = text[cut:]
	}
	return strings.TrimSpace(text)
}
