package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// settings reads the assignments of a unit file as Section.Key to values.
func settings(t *testing.T, unit string) map[string][]string {
	t.Helper()
	got, section := map[string][]string{}, ""
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok {
				t.Fatalf("the line %q is no assignment", line)
			}
			got[section+"."+key] = append(got[section+"."+key], strings.Fields(value)...)
		}
	}
	return got
}

func TestTheUnitKeepsWhatTheAgentReliesOn(t *testing.T) {
	got := settings(t, Unit)
	for _, tt := range []struct{ sentence, key, want string }{
		{"the unit is up when the agent says so", "Service.Type", "notify"},
		{"the agent alone may say so", "Service.NotifyAccess", "main"},
		{"ending the agent ends no pod", "Service.KillMode", "process"},
		{"systemd leaves the cgroups of pods alone", "Service.Delegate", "yes"},
		{"the agent always comes back", "Service.Restart", "always"},
		{"however often it has ended", "Unit.StartLimitIntervalSec", "0"},
		{"the kernel takes it last when memory is short", "Service.OOMScoreAdjust", "-999"},
		{"a hang is noticed", "Service.WatchdogSec", "30s"},
		{"the runtime is started before", "Unit.After", "containerd.service"},
		{"the network is up before", "Unit.After", "network-online.target"},
		{"the runtime is wanted, not required", "Unit.Wants", "containerd.service"},
		{"mounts reach the pods", "Service.PrivateMounts", "no"},
		{"it starts the agent", "Service.ExecStart", "/usr/bin/berth"},
		{"it is enabled for a normal boot", "Install.WantedBy", "multi-user.target"},
	} {
		t.Run(tt.sentence, func(t *testing.T) {
			if !slices.Contains(got[tt.key], tt.want) {
				t.Errorf("%s = %q, want %q in it", tt.key, got[tt.key], tt.want)
			}
		})
	}
}

// systemd itself must find nothing to say about the unit. It exits 0 on keys
// that it does not know, so silence is asked for too.
func TestSystemdFindsNothingToSayAboutTheUnit(t *testing.T) {
	root := t.TempDir()
	stub := "[Unit]\nDescription=stub\n[Service]\nType=oneshot\nExecStart=/usr/bin/berth\n"
	target := "[Unit]\nDescription=stub\n"
	for path, content := range map[string]string{
		"usr/bin/berth":                                  "#!/bin/sh\n",
		"usr/lib/systemd/system/" + UnitName:             Unit,
		"usr/lib/systemd/system/containerd.service":      stub,
		"usr/lib/systemd/system/network-online.target":   target,
		"usr/lib/systemd/system/multi-user.target":       target,
		"usr/lib/systemd/system/basic.target":            target,
		"usr/lib/systemd/system/sysinit.target":          target,
		"usr/lib/systemd/system/shutdown.target":         target,
		"usr/lib/systemd/system/system.slice":            "[Unit]\nDescription=stub\n",
		"usr/lib/systemd/system/systemd-tmpfiles.target": target,
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if path == "usr/bin/berth" {
			mode = 0o755
		}
		if err := os.WriteFile(full, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, UnitName).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
