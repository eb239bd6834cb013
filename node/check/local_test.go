package check

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/nodeconfig"
	"berth/internal/nodeconfig/nodeconfigtest"
	"berth/node"
	"berth/nodeapi"
)

// loadConfig loads a KubeletConfiguration with the given fields.
func loadConfig(t *testing.T, fields string) *nodeconfig.Config {
	t.Helper()
	return nodeconfigtest.Load(t, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+fields)
}

func TestCheckReportsUnreachableNameServers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	c := Node{Config: loadConfig(t, "resolvConf: "+file+"\n")}
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
		c.CheckNameServers(Adder(&r))
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
	if c := loadConfig(t, ""); c.Network.FallbackResolvConf != nodeconfig.SystemdResolvConf {
		t.Errorf("unset: fallback is %q", c.Network.FallbackResolvConf)
	}
	if c := loadConfig(t, "resolvConf: /etc/resolv.conf\n"); c.Network.FallbackResolvConf != "" {
		t.Errorf("set: fallback is %q", c.Network.FallbackResolvConf)
	}
	dir := t.TempDir()
	network := nodeconfig.Network{
		ResolvConf:         filepath.Join(dir, "stub"),
		FallbackResolvConf: filepath.Join(dir, "real"),
	}
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var resolvConf node.PodResolvConf
	resolvConf.SetPaths(network.ResolvConf, network.FallbackResolvConf)
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
		if got := strings.Join(resolvConf.Current(logger).Nameservers, " "); got != row.servers {
			t.Errorf("row %d: name servers %q, want %q", i, got, row.servers)
		}
		var r nodeapi.CheckReport
		Node{Config: &nodeconfig.Config{Network: network}}.CheckNameServers(Adder(&r))
		if len(r.Items) != 1 || !strings.Contains(r.Items[0].Detail, row.checked) {
			t.Errorf("row %d: check items %+v, want %q", i, r.Items, row.checked)
		}
		if n := strings.Count(log.String(), "\n"); n != row.logged {
			t.Errorf("row %d: %d log lines, want %d:\n%s", i, n, row.logged, &log)
		}
	}
}
