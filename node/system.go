package node

import (
	"bufio"
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// SystemInfo says what machine this is and what runs on it. What cannot be read is
// empty.
func SystemInfo() corev1.NodeSystemInfo {
	s := corev1.NodeSystemInfo{
		OperatingSystem: "linux", Architecture: runtime.GOARCH,
		MachineID:  line("/etc/machine-id", "/var/lib/dbus/machine-id"),
		SystemUUID: line("/sys/class/dmi/id/product_uuid", "/sys/devices/virtual/dmi/id/product_uuid", "/etc/machine-id"),
		BootID:     line("/proc/sys/kernel/random/boot_id"),
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

// line is the first of the files that there is, without its end of line.
func line(paths ...string) string {
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(text)) > 0 {
			return string(bytes.TrimSpace(text))
		}
	}
	return ""
}

// prettyName is how an os-release file calls the system.
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

// ValidateNodeIPs complains of an address that no other machine can reach this one by.
func ValidateNodeIPs(ips []netip.Addr) error {
	for _, ip := range ips {
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
			return fmt.Errorf("--node-ip: %s cannot be the address of a node that joins a server: others have to reach it; give one of this host's other addresses", ip)
		}
	}
	return nil
}
