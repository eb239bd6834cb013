package control

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/control/authn"
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
		{"reload without a file", func(c *Config) { c.EncryptionConfigReload = true },
			"encryption-provider-config-automatic-reload"},
		{"unknown admission plugin", func(c *Config) { c.EnabledAdmissionPlugins = []string{"Nonsense"} },
			`enable-admission-plugins plugin "Nonsense" is unknown`},
		{"authentication", func(c *Config) { c.Authentication.OIDC.ClientID = "x" }, "oidc-issuer-url"},
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

// FuzzConfigFile checks that no file makes the server panic, and that errors name the file.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{configHeader, configHeader + "listen: 192.0.2.1\nsecurePort: 0\n",
		configHeader + "podRanges: [10.42.0.0/16]\nnodePorts: 1-2\nloadBalancerPool: [192.0.2.1-192.0.2.2]\n",
		configHeader + "authentication: {oidc: {requiredClaims: {a: b}}, tokenWebhook: {cacheTTL: 1s}}\n",
		configHeader + "audit: {log: {path: \"-\"}}\n", "", "a: &a [*a]",
		configHeader + "podRanges: [\"\"]\nserviceRanges: [\"\"]\nloadBalancerPool: [\"\"]\n",
		configHeader + "serviceRanges: [\"\"]\n", configHeader + "advertiseAddress: \"\"\n",
		configHeader + "nodePorts: \"\"\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parseConfigFile("control.yaml", text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "configuration control.yaml: ") {
				t.Errorf("got error %v", err)
			}
			return
		}
		c := Default()
		file.ApplyTo(&c, func(string) bool { return false })
		_, _ = file.Deprecations(), c.Validate() // most files are not valid
	})
}

// TestConfigFileOfAccess: the fields of identity and admission correspond to flags, which take precedence.
func TestConfigFileOfAccess(t *testing.T) {
	t.Parallel()
	f, err := ReadConfigFile(file(t, configHeader+`authentication:
  configFile: a
  anonymousAuth: false
  oidc: {issuerURL: https://a, clientID: b, caFile: c, usernameClaim: d, usernamePrefix: e, groupsClaim: f,
    groupsPrefix: g, signingAlgs: [ES256], requiredClaims: {h: i}}
  tokenWebhook: {configFile: w, cacheTTL: 1s, version: v1}
  requestHeader: {clientCAFile: h, allowedNames: [a], usernameHeaders: [b], uidHeaders: [c], groupHeaders: [d],
    extraHeadersPrefix: [e]}
serviceAccountJWKSURI: https://k
enableAdmissionPlugins: [AlwaysPullImages]
admissionControlConfigFile: x
encryptionProviderConfig: y
encryptionProviderConfigAutomaticReload: true
`))
	if err != nil {
		t.Fatal(err)
	}
	no := false
	want := Default()
	want.ServiceAccountJWKSURI, want.AdmissionConfigFile = "https://k", "x"
	want.EnabledAdmissionPlugins = []string{"AlwaysPullImages"}
	want.EncryptionConfig, want.EncryptionConfigReload = "y", true
	o := &want.Authentication
	o.ConfigFile, o.Anonymous = "a", &no
	o.OIDC = authn.OIDCOptions{IssuerURL: "https://a", ClientID: "b", CAFile: "c", UsernameClaim: "d",
		UsernamePrefix: "e", GroupsClaim: "f", GroupsPrefix: "g", SigningAlgs: []string{"ES256"},
		RequiredClaims: map[string]string{"h": "i"}}
	o.Webhook = authn.WebhookOptions{ConfigFile: "w", CacheTTL: time.Second, Version: "v1"}
	o.RequestHeader = authn.RequestHeaderOptions{ClientCAFile: "h", AllowedNames: []string{"a"},
		UsernameHeaders: []string{"b"}, UIDHeaders: []string{"c"}, GroupHeaders: []string{"d"},
		ExtraHeaderPrefixes: []string{"e"}}
	got := Default()
	f.ApplyTo(&got, func(string) bool { return false })
	got.Log, want.Log = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got = Default()
	f.ApplyTo(&got, func(string) bool { return true })
	want = Default()
	got.Log, want.Log = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with all flags: got %+v, want %+v", got, want)
	}
}
