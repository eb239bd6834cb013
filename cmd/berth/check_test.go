package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
		r, err := check.Local(t.Context(), check.LocalOptions{Flags: flags, Version: version, StoreFile: storeFile})
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

func TestCheckReportsUnreachableNameServers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	c := check.Node{
		Config: loadConfig(
			t,
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nresolvConf: "+file+"\n",
		),
	}
	for _, row := range []struct {
		content string
		ok      bool
	}{
		{"nameserver 127.0.0.53\noptions edns0\n", false}, // stub of systemd-resolved
		{"nameserver ::1\nnameserver 127.0.0.1\n", false},
		{"nameserver 127.0.0.1\nnameserver 192.0.2.1\n", true},
		{"search example.org\n", false},
		{"", false}, // no such file
	} {
		if err := os.WriteFile(file, []byte(row.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if row.content == "" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		var r nodeapi.CheckReport
		c.CheckNameServers(check.Adder(&r))
		if len(r.Items) != 1 || r.Items[0].OK != row.ok || r.Items[0].Essential || !row.ok && r.Items[0].Remedy == "" ||
			!strings.Contains(r.Items[0].Detail, file) {
			t.Errorf("%q: %+v", row.content, r.Items)
		}
	}
}

// TestPodsInheritNameServersBehindStubResolver covers the stub of systemd-resolved: pods inherit
// its servers as soon as they can be reached. The change is logged once and reported by berth
// check.
func TestPodsInheritNameServersBehindStubResolver(t *testing.T) {
	t.Parallel()
	if c := loadConfig(t, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: "+
		"KubeletConfiguration\n"); c.Network.FallbackResolvConf != nodeconfig.SystemdResolvConf {
		t.Errorf("unset: fallback is %q", c.Network.FallbackResolvConf)
	}
	if c := loadConfig(
		t, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nresolvConf: /etc/resolv.conf\n",
	); c.Network.FallbackResolvConf != "" {
		t.Errorf("set: fallback is %q", c.Network.FallbackResolvConf)
	}
	dir := t.TempDir()
	network := nodeconfig.Network{
		ResolvConf:         filepath.Join(dir, "stub"),
		FallbackResolvConf: filepath.Join(dir, "real"),
	}
	var log strings.Builder
	h := &host{b: &berth{log: slog.New(slog.NewTextHandler(&log, nil))}}
	h.resolvConf.SetPaths(network.ResolvConf, network.FallbackResolvConf)
	const stub, resolved = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch " +
		"example.org\n", "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch example.org\n"
	for i, row := range []struct {
		stub, real string // empty: no file
		servers    string
		checked    string // part of the output of berth check
		logged     int    // log lines so far
	}{
		{"", "", "", "no such file", 1},
		{stub, "", "127.0.0.53", "which pods cannot reach", 1}, // systemd-resolved is starting
		{stub, "nameserver 127.0.0.1\n", "127.0.0.53", "which pods cannot reach", 1},
		{stub, "# none yet\n", "127.0.0.53", "which pods cannot reach", 1},
		{
			stub, resolved, "192.0.2.1 2001:db8::1",
			"192.0.2.1, 2001:db8::1 in " + network.FallbackResolvConf + ": " + network.ResolvConf +
				" contains only loopback addresses",
			2,
		},
		{stub, resolved, "192.0.2.1 2001:db8::1", "contains only loopback addresses", 2},
		{"nameserver 192.0.2.9\n", resolved, "192.0.2.9", "192.0.2.9 in " + network.ResolvConf, 2},
		{"nameserver 127.0.0.1\nnameserver 192.0.2.9\n", resolved, "127.0.0.1 192.0.2.9", "in " + network.ResolvConf,
			2},
		{"options edns0\n", resolved, "", "no name servers in", 2}, // configured on purpose
	} {
		for path, text := range map[string]string{network.ResolvConf: row.stub, network.FallbackResolvConf: row.real} {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if text == "" {
				continue
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(h.hostResolv().Nameservers, " "); got != row.servers {
			t.Errorf("row %d: name servers %q, want %q", i, got, row.servers)
		}
		var r nodeapi.CheckReport
		check.Node{Config: &nodeconfig.Config{Network: network}}.CheckNameServers(check.Adder(&r))
		if len(r.Items) != 1 || !strings.Contains(r.Items[0].Detail, row.checked) {
			t.Errorf("row %d: check items %+v, want %q", i, r.Items, row.checked)
		}
		if n := strings.Count(log.String(), "\n"); n != row.logged {
			t.Errorf("row %d: %d log lines, want %d:\n%s", i, n, row.logged, &log)
		}
	}
}
