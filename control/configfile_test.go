package control

import (
	"os"
	"path/filepath"
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
	f, err := ReadConfigFile(file(t, configHeader+"listen: 10.0.0.1:6443\ndataDir: /data\nnames: [a, b]\npodRanges: [10.1.0.0/16]\nnodeMonitorGracePeriod: 1m\nserviceAccountExtendTokenExpiration: false\netcd: {servers: [\"https://e:2379\"], caFile: /ca}\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.DataDir = "/flag"
	f.ApplyTo(&c, func(flag string) bool { return flag == "data-dir" })
	if c.DataDir != "/flag" || c.Listen != "10.0.0.1:6443" || len(c.TLSSANs) != 2 || len(c.ClusterCIDRs) != 1 || c.ClusterCIDRs[0].String() != "10.1.0.0/16" || c.Etcd.Endpoints[0] != "https://e:2379" || c.Etcd.CAFile != "/ca" || c.NodeMonitorGracePeriod != time.Minute || c.ExtendTokenExpiration {
		t.Errorf("the config is %+v", c)
	}
}

func TestReadConfigFileErrorNamesField(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"another kind", "apiVersion: v1\nkind: Pod\n", "must be apiVersion: berth.dev/v1alpha1, kind: ControlConfiguration"},
		{"an unknown field", configHeader + "lisen: x\n", "lisen"},
		{"a wrong type", configHeader + "names: x\n", "names"},
		{"nothing", "", "is empty"},
		{"two documents", configHeader + "---\n" + configHeader, "more than 1 documents"},
	} {
		_, err := ReadConfigFile(file(t, c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestConfigValidateErrorNamesField(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no port", func(c *Config) { c.Listen = "10.0.0.1" }, "listen:"},
		{"no directory", func(c *Config) { c.DataDir = "" }, "data-dir:"},
		{"no such part", func(c *Config) { c.Off = []string{"nonsense"} }, `off: there is no part "nonsense"`},
		{"a grace of nothing", func(c *Config) { c.NodeMonitorGracePeriod = 0 }, "node-monitor-grace-period: 0s is too short"},
		{"half of a certificate", func(c *Config) { c.Etcd.CertFile = "/x" }, "etcd-keyfile"},
		{"certificates without servers", func(c *Config) { c.Etcd.CAFile = "/x" }, "etcd-servers"},
	} {
		config := Default()
		c.change(&config)
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	config := Default()
	if err := config.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
