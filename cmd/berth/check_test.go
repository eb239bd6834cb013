package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/cis"
	"berth/internal/nodeconfig"
	"berth/node/check"
	"berth/nodeapi"
)

// TestLocalCheckChangesNothing runs without an agent, a runtime and existing directories.
func TestLocalCheckChangesNothing(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
podLogsDir: ` + dir + `/logs
---
apiVersion: berth.dev/v1alpha1
kind: BerthConfiguration
cniConfDir: ` + dir + `/net.d
cniBinDirs: [` + dir + `/bin]
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	runCheck := func(extra ...string) nodeapi.CheckReport {
		flags := &nodeconfig.Flags{}
		args := []string{
			"--config",
			config,
			"--root-dir",
			dir + "/root",
			"--state-dir",
			dir + "/state",
			"--container-runtime-endpoint",
			"unix://" + dir + "/none.sock",
		}
		if err := localFlags(flags).Parse(append(args, extra...)); err != nil {
			t.Fatal(err)
		}
		r, err := check.Local(t.Context(), check.LocalOptions{Flags: flags, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	item := func(r nodeapi.CheckReport, name string) nodeapi.CheckItem {
		i := slices.IndexFunc(r.Items, func(it nodeapi.CheckItem) bool { return it.Name == name })
		if i < 0 {
			t.Fatalf("no item %s: %+v", name, r.Items)
		}
		return r.Items[i]
	}
	r := runCheck()
	if it := item(r, "runtime"); it.OK || !it.Essential || !strings.Contains(it.Detail, "none.sock") ||
		it.Remedy == "" {
		t.Errorf("%+v", it)
	}
	if it := item(r, "cni configuration"); it.OK {
		t.Errorf("%+v", it)
	}
	if it := item(r, "disk of images"); it.OK || it.Remedy == "" {
		t.Errorf("%+v", it)
	}
	for _, name := range []string{"disk of root-dir", "disk of pod logs", "local store"} {
		if it := item(r, name); strings.Contains(it.Detail, "no such file") {
			t.Errorf("%+v", it)
		}
	}
	if it := item(runCheck("--cni-pod-cidr", "10.9.0.0/24"), "cni configuration"); !it.OK {
		t.Errorf("with a pod CIDR: %+v", it)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("files were created: %v %v", left, err)
	}
}

func TestCheckCommandAcceptsRunFlagsAndSocket(t *testing.T) {
	dir := t.TempDir()
	cmd := root()
	var out, errs strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(
		[]string{
			"check",
			"--socket",
			dir + "/berth.sock",
			"--container-runtime-endpoint",
			"unix://" + dir + "/none.sock",
		},
	)
	if err := cmd.ExecuteContext(t.Context()); err == nil {
		t.Error("the check succeeds without a runtime")
	}
	if !strings.HasPrefix(out.String(), "berth is not running: the checks were run locally\n") ||
		!strings.Contains(out.String(), dir+"/none.sock") {
		t.Errorf("%s\n%s", out.String(), errs.String())
	}
}

// TestCheckCISRunsLocally checks a configuration file with a mode that the benchmark rejects, without an agent.
func TestCheckCISRunsLocally(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\ncniConfDir: " + dir + "/net.d\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]string{0o600: "\n4.1.9    PASS", 0o644: "\n4.1.9    FAIL"} {
		if err := os.Chmod(config, mode); err != nil {
			t.Fatal(err)
		}
		cmd := root()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"check", "--cis", "--socket", dir + "/berth.sock", "--config", config})
		err := cmd.ExecuteContext(t.Context())
		if !strings.HasPrefix(out.String(), "berth is not running: the checks were run locally\n"+cis.Benchmark) ||
			!strings.Contains(out.String(), want) || err == nil && mode != 0o600 {
			t.Errorf("mode %o: got %v\n%s", mode, err, out.String())
		}
	}
}
