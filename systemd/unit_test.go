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
				t.Fatalf("line %q is not an assignment", line)
			}
			got[section+"."+key] = append(got[section+"."+key], strings.Fields(value)...)
		}
	}
	return got
}

func TestUnitDirectives(t *testing.T) {
	got := settings(t, Unit)
	for _, tt := range []struct{ name, key, want string }{
		{"the agent notifies readiness", "Service.Type", "notify"},
		{"only the main process may notify", "Service.NotifyAccess", "main"},
		{"stopping the agent stops no pods", "Service.KillMode", "process"},
		{"cgroups are delegated", "Service.Delegate", "yes"},
		{"the agent is always restarted", "Service.Restart", "always"},
		{"restarts are not limited", "Unit.StartLimitIntervalSec", "0"},
		{"the agent is killed last when out of memory", "Service.OOMScoreAdjust", "-999"},
		{"the watchdog is enabled", "Service.WatchdogSec", "30s"},
		{"starts after the runtime", "Unit.After", "containerd.service"},
		{"starts after the network", "Unit.After", "network-online.target"},
		{"the runtime is wanted, not required", "Unit.Wants", "containerd.service"},
		{"mounts propagate to pods", "Service.PrivateMounts", "no"},
		{"reload sends SIGHUP", "Service.ExecReload", "-HUP"},
		{"starts the agent", "Service.ExecStart", "/usr/bin/berth"},
		{"enabled for multi-user.target", "Install.WantedBy", "multi-user.target"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !slices.Contains(got[tt.key], tt.want) {
				t.Errorf("%s: got %q, want %q in it", tt.key, got[tt.key], tt.want)
			}
		})
	}
}

// units are the units with their maximum exposure level of systemd-analyze, in tenths.
var units = []struct {
	name, text string
	exposed    string
}{
	{UnitName, Unit, "70"}, // it mounts file systems and enters pod networks
	{ControlUnitName, ControlUnit, "20"},
}

// TestUnitHasNoMountNamespace: volume mounts would not propagate to pods from a separate mount namespace.
// Each of these options creates one.
func TestUnitHasNoMountNamespace(t *testing.T) {
	got := settings(t, Unit)
	for _, key := range []string{
		"ProtectSystem", "ProtectHome", "ProtectHostname", "ProtectClock", "ProtectControlGroups", "ProtectKernelLogs",
		"ProtectKernelModules",
		"ProtectKernelTunables", "ProtectProc", "ProcSubset", "PrivateTmp", "PrivateDevices", "PrivateNetwork",
		"PrivateUsers", "PrivateIPC",
		"ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths", "TemporaryFileSystem",
		"BindPaths", "BindReadOnlyPaths",
		"RootDirectory", "RootImage", "MountFlags", "DynamicUser", "CacheDirectory", "LogsDirectory", "LoadCredential",
		"MountAPIVFS",
	} {
		if value, set := got["Service."+key]; set {
			t.Errorf("%s=%s creates a mount namespace for the agent", key, value)
		}
	}
}

// TestUnitMayReadButNotSetClock: a system call that is listed without ~ after a denied group is allowed again.
func TestUnitMayReadButNotSetClock(t *testing.T) {
	var lines []string
	for line := range strings.Lines(Unit) {
		if filter, ok := strings.CutPrefix(strings.TrimSpace(line), "SystemCallFilter="); ok {
			lines = append(lines, filter)
		}
	}
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "~@clock ") || lines[1] != "adjtimex" {
		t.Errorf("got filters %q, want denied calls with @clock first, then adjtimex", lines)
	}
	if !slices.Contains(settings(t, Unit)["Service.CapabilityBoundingSet"], "~CAP_SYS_TIME") {
		t.Error("unit may set the clock")
	}
}

func TestInDirectory(t *testing.T) {
	got := settings(t, InDirectory(Unit, "/usr/local/bin/"))
	if want := []string{
		"/usr/local/bin/berth",
		"run",
		"--config",
		"/etc/berth/config.yaml",
	}; !slices.Equal(
		got["Service.ExecStart"],
		want,
	) {
		t.Errorf("ExecStart=%q, want %q", got["Service.ExecStart"], want)
	}
	if want := []string{"/bin/kill", "-HUP", "$MAINPID"}; !slices.Equal(got["Service.ExecReload"], want) {
		t.Errorf("ExecReload=%q, want %q", got["Service.ExecReload"], want)
	}
}

// systemd-analyze must not report anything. It exits 0 on unknown keys, so the output must be
// empty, too.
func TestSystemdAnalyzeVerify(t *testing.T) {
	root := t.TempDir()
	const program = "#!/bin/sh\n"
	stub := "[Unit]\nDescription=stub\n"
	files := map[string]string{
		"usr/bin/berth": program, "usr/bin/berth-control": program, "bin/kill": program,
		"usr/lib/systemd/system/containerd.service": stub + "[Service]\nType=oneshot\nExecStart=/usr/bin/berth\n",
	}
	for _, unit := range []string{"network-online.target", "multi-user.target", "basic.target", "sysinit.target",
		"shutdown.target", "system.slice"} {
		files["usr/lib/systemd/system/"+unit] = stub
	}
	for _, u := range units {
		files["usr/lib/systemd/system/"+u.name] = u.text
	}
	for path, content := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if content == program {
			mode = 0o755
		}
		if err := os.WriteFile(full, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range units {
		t.Run(u.name, func(t *testing.T) {
			out, err := exec.CommandContext(
				t.Context(),
				"systemd-analyze",
				"verify",
				"--man=no",
				"--root="+root,
				u.name,
			).CombinedOutput()
			if err != nil || strings.TrimSpace(string(out)) != "" {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			// It checks only the file. The exit code reports whether the threshold is exceeded.
			out, err = exec.CommandContext(
				t.Context(),
				"systemd-analyze",
				"security",
				"--no-pager",
				"--offline=true",
				"--threshold="+u.exposed,
				filepath.Join(root, "usr/lib/systemd/system", u.name),
			).CombinedOutput()
			if err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
		})
	}
}
