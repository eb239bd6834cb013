package node

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// AppArmorEnabled reports whether this host's kernel enforces AppArmor profiles.
func AppArmorEnabled() bool { return appArmor("/sys/module/apparmor/parameters/enabled") }

func appArmor(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && bytes.HasPrefix(text, []byte("Y"))
}

// RootMountShared reports whether what is mounted below the root file system reaches
// other mount namespaces and comes from them, as systemd has it on every host
// that it boots. Runtimes refuse a mount with Bidirectional propagation of a
// path that lies on a mount where it is not so.
func RootMountShared() (bool, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	return rootShared(string(text)), nil
}

// rootShared looks for the mark in the last mount at /, which hides those
// before it. Fields: proc_pid_mountinfo(5).
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
