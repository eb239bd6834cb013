package control

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const configHeader = "apiVersion: berth.dev/v1alpha1\nkind: ControlConfiguration\n"

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "control.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigFileFlagsTakePrecedence(t *testing.T) {
	f, err := ReadConfigFile(
		file(
			t,
			configHeader+"bindAddress: 10.0.0.1\nsecurePort: 443\ndataDir: /data\n"+
				"tlsSANs: [a, b]\ncontrollers: [scheduler]\n"+
				"podRanges: [10.1.0.0/16]\nnodeMonitorGracePeriod: 1m\n"+
				"serviceAccountExtendTokenExpiration: false\netcd: {servers: [\"https://e:2379\"], caFile: /ca}\n",
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.DataDir = "/flag"
	f.ApplyTo(&c, func(flag string) bool { return flag == "data-dir" })
	if c.DataDir != "/flag" || c.Listen != "10.0.0.1:443" || len(c.TLSSANs) != 2 || len(c.ClusterCIDRs) != 1 ||
		c.ClusterCIDRs[0].String() != "10.1.0.0/16" ||
		c.Etcd.Endpoints[0] != "https://e:2379" ||
		c.Etcd.CAFile != "/ca" ||
		c.NodeMonitorGracePeriod != time.Minute ||
		c.ExtendTokenExpiration ||
		!slices.Equal(c.Controllers, []string{"scheduler"}) ||
		len(f.Deprecations()) != 0 {
		t.Errorf("config: %+v", c)
	}
}

func TestConfigFileDeprecatedFields(t *testing.T) {
	t.Parallel()
	f, err := ReadConfigFile(file(t, configHeader+"names: [a]\ntlsSANs: [b]\noff: [scheduler]\n"+
		"servicesRouted: true\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Deprecations(); len(got) != 3 || !strings.Contains(got[0], "tlsSANs") ||
		!strings.Contains(got[1], "controllers") || !strings.Contains(got[2], "servicesRouted") {
		t.Errorf("warnings %q", got)
	}
	for _, row := range []struct {
		name, flag  string
		names       []string
		controllers []string
	}{
		{"no flags", "", []string{"b", "a"}, []string{"-scheduler", "*"}},
		{"--tls-san", "tls-san", nil, []string{"-scheduler", "*"}},
		{"deprecated --name", "name", nil, []string{"-scheduler", "*"}},
		{"--controllers", "controllers", []string{"b", "a"}, []string{"*"}},
		{"deprecated --off", "off", []string{"b", "a"}, []string{"*"}},
	} {
		c := Default()
		f.ApplyTo(&c, func(flag string) bool { return flag == row.flag })
		if !slices.Equal(c.TLSSANs, row.names) || !slices.Equal(c.Controllers, row.controllers) {
			t.Errorf("%s: got %q and %q, want %q and %q", row.name, c.TLSSANs, c.Controllers, row.names,
				row.controllers)
		}
	}
}

func TestConfigFileListenAddress(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, flag, want string }{
		{"default", "", "", "[::]:6443"},
		{"address", "bindAddress: 10.0.0.1\n", "", "10.0.0.1:6443"},
		{"port", "securePort: 0\n", "", "[::]:0"},
		{"former field", "listen: localhost:443\n", "", "localhost:443"},
		{"former field and port", "listen: 10.0.0.1:443\nsecurePort: 444\n", "", "10.0.0.1:444"},
		{"address by flag", "bindAddress: 10.0.0.1\nsecurePort: 443\n", "bind-address", "[::]:443"},
		{"former field and port by flag", "listen: 10.0.0.1:443\n", "secure-port", "10.0.0.1:6443"},
		{"former flag", "bindAddress: 10.0.0.1\nsecurePort: 443\nlisten: 10.0.0.2:444\n", "listen", "[::]:6443"},
		{"former field without port", "listen: 10.0.0.1\n", "", "10.0.0.1"},
	} {
		f, err := ReadConfigFile(file(t, configHeader+row.text))
		if err != nil {
			t.Fatal(err)
		}
		c := Default()
		f.ApplyTo(&c, func(flag string) bool { return flag == row.flag })
		if c.Listen != row.want {
			t.Errorf("%s: got %s, want %s", row.name, c.Listen, row.want)
		}
		if got := len(f.Deprecations()); (got == 1) != strings.Contains(row.text, "listen") {
			t.Errorf("%s: %d warnings", row.name, got)
		}
	}
}

func TestReadConfigFileErrorNamesField(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"wrong kind", "apiVersion: v1\nkind: Pod\n",
			"must be apiVersion: berth.dev/v1alpha1, kind: ControlConfiguration"},
		{"unknown field", configHeader + "lisen: x\n", "lisen"},
		{"wrong type", configHeader + "names: x\n", "names"},
		{"nothing", "", "is empty"},
		{"two documents", configHeader + "---\n" + configHeader, "more than 1 documents"},
	} {
		_, err := ReadConfigFile(file(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestConfigValidateErrorNamesField(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"listen address without port", func(c *Config) { c.Listen = "10.0.0.1" },
			`bind-address and secure-port: "10.0.0.1" is not`},
		{"empty data directory", func(c *Config) { c.DataDir = "" }, "data-dir:"},
		{"unknown controller", func(c *Config) { c.Controllers = []string{"nonsense"} },
			`controllers: "nonsense" is not a known controller`},
		{"zero grace period", func(c *Config) {
			c.NodeMonitorGracePeriod = 0
		}, "node-monitor-grace-period: 0s is too short"},
		{"etcd certificate without key", func(c *Config) { c.Etcd.CertFile = "/x" }, "etcd-keyfile"},
		{"etcd CA without etcd servers", func(c *Config) { c.Etcd.CAFile = "/x" }, "etcd-servers"},
	} {
		config := Default()
		c.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	config := Default()
	if err := config.Validate(); err != nil {
		t.Errorf("default config: %v", err)
	}
}
