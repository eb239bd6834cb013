package node

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// SystemInfo describes the machine and its operating system. Unreadable fields are empty.
func SystemInfo() corev1.NodeSystemInfo {
	s := corev1.NodeSystemInfo{
		OperatingSystem: "linux",
		Architecture:    runtime.GOARCH,
		MachineID:       firstLine("/etc/machine-id", "/var/lib/dbus/machine-id"),
		SystemUUID: firstLine(
			"/sys/class/dmi/id/product_uuid",
			"/sys/devices/virtual/dmi/id/product_uuid",
			"/etc/machine-id",
		),
		BootID: firstLine("/proc/sys/kernel/random/boot_id"),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		s.KernelVersion = unix.ByteSliceToString(u.Release[:])
	}
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		if text, err := os.ReadFile(path); err == nil {
			s.OSImage = prettyName(text)
			break
		}
	}
	return s
}

// Labels returns the labels of a node with the configured ones, which have precedence.
func Labels(name string, configured map[string]string) map[string]string {
	out := map[string]string{
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(out, podspec.FeatureLabels(podspec.UnsupportedFeatures()))
	maps.Copy(out, configured)
	return out
}

// SetOOMScore protects this process from the OOM killer, or exposes it: score is from -1000 to 1000.
func SetOOMScore(score int) error {
	return os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(score)), 0o644)
}

// firstLine returns the trimmed content of the first file that is not empty.
func firstLine(paths ...string) string {
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return string(bytes.TrimSpace(text))
		}
	}
	return ""
}

// prettyName returns PRETTY_NAME of an os-release file.
func prettyName(text []byte) string {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "PRETTY_NAME="); ok {
			if plain, err := strconv.Unquote(value); err == nil {
				return plain
			}
			return strings.Trim(value, `'"`)
		}
	}
	return "Linux"
}

// ValidateNodeIPs returns an error if other machines cannot reach one of the addresses.
func ValidateNodeIPs(ips []netip.Addr) error {
	for _, ip := range ips {
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
			return fmt.Errorf("--node-ip: %s is not reachable from other machines: use another address of this host",
				ip)
		}
	}
	return nil
}

// KubernetesVersion returns the Kubernetes release of the linked API types; empty: unknown.
func KubernetesVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "k8s.io/api" {
			return "v1" + strings.TrimPrefix(m.Version, "v0")
		}
	}
	return ""
}

// KubernetesRelease returns KubernetesVersion as major.minor.
func KubernetesRelease() string { return majorMinor(KubernetesVersion()) }

func majorMinor(version string) string {
	release := strings.TrimPrefix(version, "v")
	if parts := strings.SplitN(release, ".", 3); len(parts) == 3 {
		release = parts[0] + "." + parts[1]
	}
	return release
}
