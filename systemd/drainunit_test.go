package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDrainUnitStopsFirst(t *testing.T) {
	got := settings(t, DrainUnit)
	for _, tt := range []struct{ name, key, want string }{
		{"stops before the agent", "Unit.After", "berth.service"},
		{"stops before the runtime", "Unit.After", "containerd.service"},
		{"stops before the network", "Unit.After", "network-online.target"},
		{"remains active until it is stopped", "Service.RemainAfterExit", "yes"},
		{"stopping the unit drains the node", "Service.ExecStop", "drain-for-shutdown"},
		{"no stop timeout", "Service.TimeoutStopSec", "infinity"},
		{"enabled for multi-user.target", "Install.WantedBy", "multi-user.target"},
	} {
		if !slices.Contains(got[tt.key], tt.want) {
			t.Errorf("%s: %s: got %q, want %q in it", tt.name, tt.key, got[tt.key], tt.want)
		}
	}
	// No other unit may stop or restart the unit together with the agent.
	for _, key := range []string{"Unit.PartOf", "Unit.BindsTo", "Unit.Requires", "Unit.StopPropagatedFrom",
		"Unit.Conflicts"} {
		if got[key] != nil {
			t.Errorf("%s = %q", key, got[key])
		}
	}
	root := t.TempDir()
	for path, content := range map[string]string{
		"usr/bin/berth": "#!/bin/sh\n", "bin/true": "#!/bin/sh\n", "usr/lib/systemd/system/" + DrainUnitName: DrainUnit,
	} {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, unit := range []string{"berth.service", "containerd.service", "network-online.target", "remote-fs.target",
		"multi-user.target", "basic.target", "sysinit.target", "shutdown.target", "system.slice"} {
		content := "[Unit]\nDescription=stub\n"
		if strings.HasSuffix(unit, ".service") {
			content += "[Service]\nType=oneshot\nExecStart=/usr/bin/berth\n"
		}
		if err := os.WriteFile(filepath.Join(root, "usr/lib/systemd/system", unit), []byte(content),
			0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "usr/lib/systemd/system", DrainUnitName), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(
		t.Context(),
		"systemd-analyze",
		"verify",
		"--man=no",
		"--root="+root,
		DrainUnitName,
	).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
