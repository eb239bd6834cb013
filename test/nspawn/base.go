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

// recipe is what makes a base what it is: another one makes another.
//
//go:embed base.go
var recipe []byte

const (
	suite  = "bookworm"
	mirror = "http://deb.debian.org/debian"
)

// packages are on every host beside Debian's essential ones. dbus is there for
// logind.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iptables", "iproute2", "kmod", "procps", "ca-certificates",
}

// containerdConfig leaves out what needs controllers and a privilege that the
// machines have not on which tests run.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
disable_cgroup = true
restrict_oom_score_adj = true
sandbox_image = %q
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
`

// files are on every host, over what packages bring.
func files(sandbox string) map[string]string {
	return map[string]string{
		"etc/machine-id":             "", // each host gets its own at the first boot
		"etc/containerd/config.toml": fmt.Sprintf(containerdConfig, sandbox),
		// A journal in memory would not contain the previous boot.
		"etc/systemd/journald.conf.d/keep.conf": "[Journal]\nStorage=persistent\nSyncIntervalSec=1s\n",
	}
}

// masked are units that make no sense on a host that is a container.
var masked = []string{
	"getty.target", "console-getty.service", "systemd-firstboot.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
	"e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "systemd-timesyncd.service", "dev-hugepages.mount", "sys-kernel-debug.mount",
	"sys-kernel-tracing.mount", "sys-kernel-config.mount",
}

// makeBase returns the root file system that all hosts lie over, made at most
// once.
func makeBase(ctx context.Context, sandbox string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOARCH, sandbox)
	sum.Write(recipe)
	key := hex.EncodeToString(sum.Sum(nil))[:16]
	dir, err := hosts.Cached("nspawn", key, func(dir string) error { return fill(ctx, dir, sandbox) })
	if err != nil {
		return "", fmt.Errorf("make the base of hosts: %w", err)
	}
	forgetOthers(dir)
	return filepath.Join(dir, "root"), nil
}

func fill(ctx context.Context, dir, sandbox string) error {
	program, err := exec.LookPath("debootstrap")
	if err != nil {
		program = "/usr/sbin/debootstrap" // not on every PATH
	}
	root := filepath.Join(dir, "root")
	cmd := exec.CommandContext(ctx, program, "--variant=minbase", "--include="+strings.Join(packages, ","), suite, root, mirror)
	// A base that is lost in a crash is recreated: nothing has to be synced.
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "DPKG_FORCE=unsafe-io", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(root, "debootstrap", "debootstrap.log"))
		return errors.Join(fmt.Errorf("debootstrap (test/deps.sh installs it): %w\n%s\n%s", err, lastOf(string(out)), lastOf(string(log))), unmountBelow(root))
	}
	if err := unmountBelow(root); err != nil { // what debootstrap itself mounted
		return err
	}
	for name, text := range files(sandbox) {
		if err := writeFile(filepath.Join(root, name), text); err != nil {
			return err
		}
	}
	for _, unit := range masked {
		at := filepath.Join(root, "etc/systemd/system", unit)
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink("/dev/null", at); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Join(root, "var/cache/apt")), os.RemoveAll(filepath.Join(root, "var/lib/apt/lists")))
}

// forgetOthers removes the bases of other recipes, of hundreds of megabytes
// each. A host may lie over one still: it cannot, for its name is in use; what
// cannot be removed is tried again by the next.
func forgetOthers(dir string) {
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

// lastOf is the end of a long text.
func lastOf(text string) string {
	if cut := len(text) - 6<<10; cut > 0 {
		text = text[cut:]
	}
	return strings.TrimSpace(text)
}
