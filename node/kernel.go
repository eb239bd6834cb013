package node

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// AppArmorEnabled reports whether the host's kernel enforces AppArmor profiles.
func AppArmorEnabled() bool { return appArmor("/sys/module/apparmor/parameters/enabled") }

func appArmor(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.HasPrefix(text, []byte("Y"))
}

// RootMountShared reports whether the root mount has shared propagation, as on all hosts booted by
// systemd. Runtimes reject a mount with Bidirectional propagation of a path on a mount without it.
func RootMountShared() (bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	return rootShared(string(text)), nil
}

// rootShared checks the last mount at /, which hides earlier ones. For the fields see
// proc_pid_mountinfo(5).
func rootShared(table string) bool {
	shared := false
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[4] != "/" {
			continue
		}
		shared = false
		for _, f := range fields[6:] {
			if f == "-" {
				break
			}
			shared = shared || strings.HasPrefix(f, "shared:")
		}
	}
	return shared
}
