package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	no := false
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string // part of the error; empty: valid
	}{
		{"defaults", func(*Options) {}, ""},
		{"file and OIDC flags", func(o *Options) { o.ConfigFile, o.OIDC.IssuerURL = "f", "https://a" },
			"authentication-config file and oidc-* flags are mutually exclusive"},
		{"issuer without client", func(o *Options) { o.OIDC.IssuerURL = "https://a" }, "must be specified together"},
		{"claim without issuer", func(o *Options) { o.OIDC.GroupsClaim = "g" }, "must be specified together"},
		{"webhook version", func(o *Options) { o.Webhook.ConfigFile, o.Webhook.Version = "f", "v2" },
			"authentication-token-webhook-version"},
		{"webhook cache", func(o *Options) { o.Webhook.ConfigFile, o.Webhook.CacheTTL = "f", -1 },
			"authentication-token-webhook-cache-ttl"},
		{"empty header", func(o *Options) { o.RequestHeader.GroupHeaders = []string{" "} },
			`empty value in "requestheader-group-headers"`},
		{"UID header", func(o *Options) { o.RequestHeader.UIDHeaders = []string{"X-Uid"} },
			"without specifying the standard X-Remote-Uid header"},
		{"anonymous", func(o *Options) { o.Anonymous = &no }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			c.change(&o)
			err := o.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
		})
	}
}

func TestFrontProxyWarnings(t *testing.T) {
	t.Parallel()
	names, user, other := []string{"a"}, []string{"x-remote-user"}, []string{"X-User"}
	for _, c := range []struct {
		name string
		o    RequestHeaderOptions
		want string // part of the only warning; empty: none
	}{
		{"nothing", RequestHeaderOptions{}, ""},
		{"complete", RequestHeaderOptions{ClientCAFile: "f", UsernameHeaders: user, AllowedNames: names}, ""},
		{"no CA", RequestHeaderOptions{UsernameHeaders: user}, "without --requestheader-client-ca-file"},
		{"no user", RequestHeaderOptions{ClientCAFile: "f"}, "without --requestheader-username-headers"},
		{"other header", RequestHeaderOptions{ClientCAFile: "f", UsernameHeaders: other},
			"without specifying the standard X-Remote-User header"},
	} {
		got := c.o.Warnings()
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

const configurationHead = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"

func issuerYAML(url, more string) string {
	return "- issuer: {url: " + url + ", audiences: [berth]}\n  claimMappings: {username: {expression: claims.sub}}\n" +
		more
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func openIssuers(t *testing.T, o Options) (*Issuers, error) {
	t.Helper()
	i, err := OpenIssuers(&o, IssuersConfig{Audiences: authenticator.Audiences{serverAudience},
		ServiceAccountIssuers: []string{serverAudience}, ServerID: "test", Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(i.Close)
	}
	return i, err
}

// TestConfigurationErrorsNameTheField opens files that a server must not start with.
func TestConfigurationErrorsNameTheField(t *testing.T) {
	t.Parallel()
	yes := true
	for _, c := range []struct {
		name, text, want string
		flag             *bool
	}{
		{name: "empty", text: "", want: "empty config data"},
		{name: "other kind", text: "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n",
			want: "expected AuthenticationConfiguration"},
		{name: "unknown field", text: configurationHead + "jwts: []\n", want: `unknown field "jwts"`},
		{name: "not https", text: configurationHead + "jwt:\n" + issuerYAML("http://a", ""),
			want: "jwt[0].issuer.url: Invalid value"},
		{name: "duplicate", text: configurationHead + "jwt:\n" + issuerYAML("https://a", "") +
			issuerYAML("https://a", ""), want: "jwt[1].issuer.url: Duplicate value"},
		{name: "issuer of service accounts", text: configurationHead + "jwt:\n" + issuerYAML(serverAudience, ""),
			want: "URL must not overlap with disallowed issuers"},
		{name: "CEL", text: configurationHead + "jwt:\n" + issuerYAML("https://a",
			"  userValidationRules: [{expression: 'user.nam == 1'}]\n"),
			want: "jwt[0].userValidationRules[0].expression"},
		{name: "conditions of disabled anonymous requests", text: configurationHead +
			"anonymous: {enabled: false, conditions: [{path: /healthz}]}\n", want: "anonymous.conditions"},
		{name: "anonymous flag", text: configurationHead + "anonymous: {enabled: true}\n", flag: &yes,
			want: "--anonymous-auth flag cannot be set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			o.ConfigFile, o.Anonymous = filepath.Join(t.TempDir(), "authentication.yaml"), c.flag
			writeFile(t, o.ConfigFile, c.text)
			if _, err := openIssuers(t, o); err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.HasPrefix(err.Error(), "authentication-config: "+o.ConfigFile) {
				t.Errorf("got error %v, want %q", err, c.want)
			}
		})
	}
}

func anonymousRequest(t *testing.T, i *Issuers, path string) bool {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server"+path, http.NoBody)
	_, ok, err := i.AuthenticateRequest(r)
	if err != nil {
		t.Error(err)
	}
	return ok
}

// TestConfigurationReloads changes the file while it is in use. A file with an error changes nothing.
func TestConfigurationReloads(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.ConfigFile = filepath.Join(t.TempDir(), "authentication.yaml")
	writeFile(t, o.ConfigFile, configurationHead+"anonymous: {enabled: false}\n")
	i, err := openIssuers(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if anonymousRequest(t, i, "/healthz") {
		t.Fatal("anonymous request accepted")
	}
	writeFile(t, o.ConfigFile, configurationHead+"anonymous: {enabled: no-bool}\n")
	if changed, err := i.reload(t.Context()); changed || err == nil {
		t.Errorf("file with an error: got %v, %v", changed, err)
	}
	if anonymousRequest(t, i, "/healthz") {
		t.Error("a file with an error changed the configuration")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); i.Run(ctx) }()
	writeFile(t, o.ConfigFile, configurationHead+"anonymous: {enabled: true, conditions: [{path: /healthz}]}\n")
	for deadline := time.Now().Add(time.Minute); !anonymousRequest(t, i, "/healthz"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the file was not reloaded")
		}
	}
	if anonymousRequest(t, i, "/api") {
		t.Error("the condition is ignored")
	}
	cancel()
	<-done
}

// TestOIDCFlags checks the defaults of the prefix of user names.
func TestOIDCFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ claim, prefix, want string }{
		{"sub", "", "https://a#"}, {"email", "", ""}, {"sub", "-", ""}, {"sub", "corp:", "corp:"},
	} {
		o := DefaultOptions().OIDC
		o.IssuerURL, o.ClientID, o.UsernameClaim, o.UsernamePrefix = "https://a", "berth", c.claim, c.prefix
		o.GroupsClaim, o.GroupsPrefix = "groups", "corp-"
		o.RequiredClaims = map[string]string{"b": "2", "a": "1"}
		got, err := o.configuration()
		if err != nil {
			t.Fatal(err)
		}
		if err := validateConfiguration(got, nil); err != nil {
			t.Error(err)
		}
		jwt := got.JWT[0]
		p := jwt.ClaimMappings.Username.Prefix
		if p == nil || *p != c.want || *jwt.ClaimMappings.Groups.Prefix != "corp-" ||
			len(jwt.ClaimValidationRules) != 2 || jwt.ClaimValidationRules[0].Claim != "a" {
			t.Errorf("claim %q, prefix %q: got %+v", c.claim, c.prefix, jwt)
		}
	}
}

// TestFrontProxy sends the headers of a front proxy with its certificate and with others.
func TestFrontProxy(t *testing.T) {
	t.Parallel()
	proxies, users := newTestCA(t, "proxies"), newTestCA(t, "users")
	options := RequestHeaderOptions{
		ClientCAFile: filepath.Join(t.TempDir(), "ca.crt"), AllowedNames: []string{"front-proxy"},
		UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"},
		UIDHeaders: []string{"X-Remote-Uid"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}
	writeFile(t, options.ClientCAFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: proxies.cert.Raw})))
	config, err := options.Config()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(users.cert)
	auth := New(Config{RequestHeader: config, ServiceAccountTokens: fakeTokens{}, BootstrapTokens: fakeTokens{},
		Audiences: authenticator.Audiences{serverAudience}, ClientCA: func() (x509.VerifyOptions, bool) {
			return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
		}})
	for _, c := range []struct {
		name, cn string
		ca       testCA
		want     string
	}{
		{"the proxy", "front-proxy", proxies, "jane"},
		{"another name", "stranger", proxies, ""},
		{"a user's certificate is that of the user", "front-proxy", users, "front-proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cert, _ := c.ca.sign(t, clientCertificate(c.cn))
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://server/api", http.NoBody)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
			for _, header := range []string{"X-Remote-User: jane", "X-Remote-Group: a", "X-Remote-Group: b",
				"X-Remote-Uid: 7", "X-Remote-Extra-Team: red"} {
				name, value, _ := strings.Cut(header, ": ")
				r.Header.Add(name, value)
			}
			got, ok, err := auth.AuthenticateRequest(r)
			if c.want == "" {
				if ok || err == nil {
					t.Errorf("got %v, %v, want an error", got, err)
				}
				return
			}
			if !ok || err != nil || got.User.GetName() != c.want {
				t.Fatalf("got %v, %v, %v", got, ok, err)
			}
			if c.want == "jane" && (!slices.Equal(got.User.GetGroups(), []string{"a", "b", "system:authenticated"}) ||
				got.User.GetUID() != "7" || !slices.Equal(got.User.GetExtra()["team"], []string{"red"}) ||
				r.Header.Get("X-Remote-User") != "") {
				t.Errorf("got %+v, header %v", got.User, r.Header)
			}
		})
	}
}

// FuzzConfiguration checks that a configuration without errors can be used.
func FuzzConfiguration(f *testing.F) {
	for _, seed := range []string{configurationHead, configurationHead + "anonymous: {enabled: true}\n",
		configurationHead + "jwt:\n" + issuerYAML("https://a", ""), configurationHead + "jwt: [{}]\n", ""} {
		f.Add([]byte(seed))
	}
	i := &Issuers{}
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := parseConfiguration(text, nil, false); err == nil && c == nil {
			t.Error("no configuration and no error")
		} else if err == nil && c.Anonymous != nil &&
			(i.anonymousAuthenticator(c.Anonymous) != nil) != c.Anonymous.Enabled {
			t.Errorf("anonymous %+v is ignored", c.Anonymous)
		}
	})
}
