package images

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/podspec"
)

// plugins is a directory with credential provider plugins, which are shell scripts, and their configuration.
type plugins struct {
	t   *testing.T
	dir string
	now time.Time
}

func newPlugins(t *testing.T) *plugins {
	return &plugins{t: t, dir: t.TempDir(), now: time.Now()}
}

// write writes a plugin that appends its request to NAME.calls and prints a response.
func (p *plugins) write(name, response string) {
	p.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\ncat >>%[1]s/%[2]s.calls; echo >>%[1]s/%[2]s.calls\n%[3]s\n", p.dir, name, response)
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(script), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// respond returns the shell command that prints a response.
func respond(cacheKey, duration, auth string) string {
	return fmt.Sprintf(`echo '{"apiVersion":"credentialprovider.kubelet.k8s.io/v1","kind":"CredentialProviderResponse",`+
		`"cacheKeyType":%q,%s"auth":%s}'`, cacheKey, duration, auth)
}

// calls returns the requests of a plugin.
func (p *plugins) calls(name string) []string {
	text, err := os.ReadFile(filepath.Join(p.dir, name+".calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// credentials reads the configuration of providers, in YAML.
func (p *plugins) credentials(providers string, change func(*NodeCredentialsOptions)) (*NodeCredentials, error) {
	p.t.Helper()
	config := filepath.Join(p.dir, "config.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n" + providers
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	o := NodeCredentialsOptions{ProviderConfig: config, ProviderBinDir: p.dir, Now: func() time.Time { return p.now }}
	if change != nil {
		change(&o)
	}
	return NewNodeCredentials(o)
}

// entry returns a provider of the configuration, in YAML.
func entry(name, images string, more ...string) string {
	return fmt.Sprintf("- {name: %s, matchImages: [%s], defaultCacheDuration: 10m, "+
		"apiVersion: credentialprovider.kubelet.k8s.io/v1%s}\n", name, images, strings.Join(more, ""))
}

// users returns the users of the credentials for an image, in order.
func users(t *testing.T, k *NodeCredentials, pod *corev1.Pod, image string) (out, warnings []string) {
	t.Helper()
	n, err := podspec.ParseImageName(image)
	if err != nil {
		t.Fatal(err)
	}
	list, warnings := k.find(t.Context(), pod, n)
	for _, c := range list {
		out = append(out, c.username)
	}
	return out, warnings
}

func TestProvidersAreCalledForTheirImages(t *testing.T) {
	t.Parallel()
	p := newPlugins(t)
	p.write("one", respond("Image", "", `{"reg.io":{"username":"short","password":"p"},`+
		`"reg.io/team":{"username":"long","password":"p"},"other.io":{"username":"other","password":"p"}}`))
	p.write("two", respond("Image", "", `{"reg.io":{"username":"second","password":"p"}}`))
	k, err := p.credentials(entry("one", "'*.io/te', 'reg.io:5000'")+entry("two", "'reg.io'"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		image string
		want  string
	}{
		{"reg.io/team/app:1", "long short second"},
		{"reg.io/app", "second"},
		{"deep.reg.io/team/app", ""},
		{"reg.io:5000/app", ""}, // the plugin has no credentials for the port
		{"busybox", ""},
	} {
		got, warnings := users(t, k, newPod("p", 0), c.image)
		if strings.Join(got, " ") != c.want || len(warnings) > 0 {
			t.Errorf("%s: got users %q and warnings %q, want %q", c.image, got, warnings, c.want)
		}
	}
	want := []string{"reg.io/team/app", "reg.io:5000/app"}
	calls := p.calls("one")
	if len(calls) != len(want) {
		t.Fatalf("got requests %q", calls)
	}
	for i, image := range want {
		if !strings.Contains(calls[i], `"image":"`+image+`"`) ||
			!strings.Contains(calls[i], `"apiVersion":"credentialprovider.kubelet.k8s.io/v1"`) {
			t.Errorf("got request %s, want image %s", calls[i], image)
		}
	}
}

func TestProviderCache(t *testing.T) {
	t.Parallel()
	const auth = `{"*.io":{"username":"u","password":"p"}}`
	for _, c := range []struct {
		name, kind, duration string
		images               []string
		later                time.Duration // before the last image
		want                 int           // calls
	}{
		{"by image", "Image", "", []string{"reg.io/a:1", "reg.io/a:2", "reg.io/b"}, 0, 2},
		{"by registry", "Registry", "", []string{"reg.io/a", "reg.io/b", "two.io/b"}, 0, 2},
		{"for all images", "Global", "", []string{"reg.io/a", "two.io/b"}, 0, 1},
		{"duration of the configuration", "Global", "", []string{"reg.io/a", "reg.io/a"}, 11 * time.Minute, 2},
		{"duration of the response", "Global", `"cacheDuration":"1h",`, []string{"reg.io/a", "reg.io/a"},
			11 * time.Minute, 1},
		{"no caching", "Global", `"cacheDuration":"0s",`, []string{"reg.io/a", "reg.io/a"}, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlugins(t)
			p.write("x", respond(c.kind, c.duration, auth))
			k, err := p.credentials(entry("x", "'*.io'"), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, image := range c.images {
				if i == len(c.images)-1 {
					p.now = p.now.Add(c.later)
				}
				if got, warnings := users(t, k, newPod("p", 0), image); !slices.Equal(got, []string{"u"}) {
					t.Errorf("%s: got users %q, warnings %q", image, got, warnings)
				}
			}
			if got := len(p.calls("x")); got != c.want {
				t.Errorf("got %d calls, want %d", got, c.want)
			}
		})
	}
}

// TestProviderErrors checks that a plugin that fails is named, and that its output is not shown.
func TestProviderErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, response, want string }{
		{"exit code", "echo cannot reach the cloud >&2; echo top-secret; exit 3", "exit status 3"},
		{"no JSON", "echo top-secret", "is not a CredentialProviderResponse in JSON"},
		{"other version", `echo '{"apiVersion":"v2","kind":"CredentialProviderResponse","password":"top-secret"}'`,
			"is not a CredentialProviderResponse of"},
		{"unknown cache key", respond("Moon", "", `{"reg.io":{"username":"u","password":"top-secret"}}`),
			"no valid cacheKeyType"},
		{"too long", "yes top-secret | head -c 1100000", "more than 1048576 bytes"},
	} {
		p := newPlugins(t)
		p.write("broken", c.response)
		p.write("good", respond("Image", "", `{"reg.io":{"username":"u","password":"p"}}`))
		failed := 0
		k, err := p.credentials(entry("broken", "reg.io")+entry("good", "reg.io"), func(o *NodeCredentialsOptions) {
			o.OnCall = func(_ string, _ time.Duration, err error) {
				if err != nil {
					failed++
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		got, warnings := users(t, k, newPod("p", 0), "reg.io/app")
		if !slices.Equal(got, []string{"u"}) || len(warnings) != 1 || failed != 1 ||
			!strings.HasPrefix(warnings[0], "credential provider broken: ") || !strings.Contains(warnings[0], c.want) ||
			strings.Contains(warnings[0], "top-secret") {
			t.Errorf("%s: got users %q, warnings %q, %d failed calls", c.name, got, warnings, failed)
		}
	}
}

func TestProviderWithServiceAccount(t *testing.T) {
	t.Parallel()
	p := newPlugins(t)
	p.write("x", respond("Registry", "", `{"reg.io":{"username":"u","password":"p"}}`))
	p.write("leaky", "echo bad token-of-owner-for-aud >&2; exit 1")
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name, account.UID = "ns", "robot", "uid-1"
	account.Annotations = map[string]string{"role": "puller", "other": "x"}
	cloud := func(o *NodeCredentialsOptions) {
		o.Account = func(context.Context, string, string) (*corev1.ServiceAccount, error) { return account, nil }
		o.Token = func(_ context.Context, pod *corev1.Pod, audience string) (string, error) {
			return "token-of-" + pod.Name + "-for-" + audience, nil
		}
	}
	token := func(cacheType string, require bool) string {
		return fmt.Sprintf(", tokenAttributes: {serviceAccountTokenAudience: aud, cacheType: %s, requireServiceAccount: "+
			"%v, requiredServiceAccountAnnotationKeys: [role], optionalServiceAccountAnnotationKeys: [none]}", cacheType,
			require)
	}
	k, err := p.credentials(entry("x", "reg.io", token("ServiceAccount", true)), cloud)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(name string) *corev1.Pod {
		pod := newPod(name, 0)
		pod.Namespace, pod.UID, pod.Spec.ServiceAccountName = "ns", types.UID(name), "robot"
		return pod
	}
	for _, name := range []string{"owner", "second"} {
		if got, warnings := users(t, k, pod(name), "reg.io/app"); len(got) != 1 || len(warnings) > 0 {
			t.Errorf("got users %q, warnings %q", got, warnings)
		}
	}
	calls := p.calls("x")
	if len(calls) != 1 || !strings.Contains(calls[0], `"serviceAccountToken":"token-of-owner-for-aud"`) ||
		!strings.Contains(calls[0], `"serviceAccountAnnotations":{"role":"puller"}`) {
		t.Errorf("got requests %q, want one for both pods", calls)
	}
	account.UID = "uid-2" // the account was replaced
	users(t, k, pod("owner"), "reg.io/app")
	if got := len(p.calls("x")); got != 2 {
		t.Errorf("got %d calls after the account was replaced, want 2", got)
	}
	if got, warnings := users(t, k, newPod("without", 0), "reg.io/app"); len(got)+len(warnings) > 0 {
		t.Errorf("a pod without an account: got users %q, warnings %q", got, warnings)
	}
	account.Annotations = nil
	if got, warnings := users(t, k, pod("owner"), "reg.io/app"); len(got) > 0 || len(warnings) != 1 {
		t.Errorf("an account without the annotation: got users %q, warnings %q", got, warnings)
	}
	account.Annotations = map[string]string{"role": "puller"}
	if k, err = p.credentials(entry("x", "reg.io", token("Token", true)), cloud); err != nil {
		t.Fatal(err)
	}
	users(t, k, pod("owner"), "reg.io/app")
	users(t, k, pod("second"), "reg.io/app")
	if calls := p.calls("x"); len(calls) != 4 || !strings.Contains(calls[3], "token-of-second") {
		t.Errorf("got requests %q, want one for each token", calls)
	}
	if k, err = p.credentials(entry("leaky", "reg.io", token("Token", true)), cloud); err != nil {
		t.Fatal(err)
	}
	if _, warnings := users(t, k, pod("owner"), "reg.io/app"); len(warnings) != 1 ||
		strings.Contains(warnings[0], "token-of") {
		t.Errorf("got warnings %q, want one without the token", warnings)
	}
}

func TestProviderConfigurationErrors(t *testing.T) {
	t.Parallel()
	token := ", tokenAttributes: {serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: false"
	for _, c := range []struct{ name, providers, want string }{
		{"no provider", "  []", "providers: at least one is required"},
		{"a name with a path", entry("../x", "reg.io"), "providers[0].name"},
		{"a name twice", entry("x", "reg.io") + entry("x", "reg.io"), "providers[1].name: x is not unique"},
		{"no pattern", entry("x", ""), "providers[0].matchImages: at least one"},
		{"an invalid pattern", entry("x", "'reg.io:port'"), "providers[0].matchImages[0]"},
		{"an unknown field", entry("x", "reg.io", ", colour: red"), "colour"},
		{"another version of the request", strings.Replace(entry("x", "reg.io"), "io/v1}", "io/v1beta1}", 1),
			"providers[0].apiVersion"},
		{"no duration", strings.Replace(entry("x", "reg.io"), "defaultCacheDuration: 10m, ", "", 1),
			"providers[0].defaultCacheDuration"},
		{"a negative duration", strings.Replace(entry("x", "reg.io"), "10m", "-1s", 1), "must not be negative"},
		{"a program that does not exist", entry("none", "reg.io"), "credential provider none"},
		{"a program that cannot be executed", entry("config.yaml", "reg.io"), "is not executable"},
		{"no audience", entry("x", "reg.io", ", tokenAttributes: {cacheType: Token, requireServiceAccount: true}"),
			"serviceAccountTokenAudience"},
		{"no cache type", entry("x", "reg.io",
			", tokenAttributes: {serviceAccountTokenAudience: a, requireServiceAccount: true}"), "cacheType"},
		{"annotations of an optional account", entry("x", "reg.io", token,
			", requiredServiceAccountAnnotationKeys: [a]}"), "requireServiceAccount: must be true"},
		{"an annotation twice", entry("x", "reg.io", token, ", optionalServiceAccountAnnotationKeys: [a, a]}"),
			"must be unique"},
	} {
		p := newPlugins(t)
		p.write("x", "true")
		_, err := p.credentials(c.providers, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
		}
	}
	_, err := NewNodeCredentials(NodeCredentialsOptions{ProviderConfig: "/none"})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v for a missing file", err)
	}
}

func TestDockerConfigurationOfNode(t *testing.T) {
	t.Parallel()
	auth := func(user string) string { return base64.StdEncoding.EncodeToString([]byte(user + ":password")) }
	first, second := t.TempDir(), t.TempDir()
	now := time.Now()
	k, err := NewNodeCredentials(NodeCredentialsOptions{DockerDirs: []string{first, second, filepath.Join(first, "none")},
		Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what, wantUser, wantWarning string) {
		t.Helper()
		now = now.Add(dockerAge + time.Second)
		got, warnings := users(t, k, newPod("p", 0), "reg.io/app")
		if strings.Join(got, " ") != wantUser || !strings.Contains(strings.Join(warnings, "\n"), wantWarning) ||
			wantWarning == "" && len(warnings) > 0 {
			t.Errorf("%s: got users %q, warnings %q", what, got, warnings)
		}
	}
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("no file", "", "")
	put(second, ".dockercfg", fmt.Sprintf(`{"reg.io":{"auth":%q}}`, auth("legacy")))
	check("the old format", "legacy", "")
	put(second, "config.json", fmt.Sprintf(`{"auths":{"reg.io":{"auth":%q},"x.io":{}}}`, auth("home")))
	check("the new format, with an entry of a credential helper", "home", "")
	put(first, "config.json", fmt.Sprintf(`{"auths":{"https://reg.io/v2/":{"auth":%q}}}`, auth("root")))
	check("the first directory", "root", "")
	put(first, "config.json", `{"auths":{"reg.io":{"auth":"top-secret"}}}`)
	check("an invalid file is skipped", "home", "")
	put(second, "config.json", `no JSON`)
	if err := os.Remove(filepath.Join(second, ".dockercfg")); err != nil {
		t.Fatal(err)
	}
	check("no valid file", "", `config.json: auths["reg.io"].auth: not the base64`)
}

// TestPullWithCredentialsOfNode pulls with the credentials of the node after those of the pod's secrets. Other pods may
// use the image then, unless a plugin was called for a service account.
func TestPullWithCredentialsOfNode(t *testing.T) {
	t.Parallel()
	p := newPlugins(t)
	p.write("x", respond("Image", "", `{"reg.io":{"username":"right","password":"p"}}`))
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name, account.UID = "ns", "robot", "uid-1"
	const token = ", tokenAttributes: {serviceAccountTokenAudience: a, cacheType: ServiceAccount, " +
		"requireServiceAccount: true}"
	for _, withAccount := range []bool{false, true} {
		more := ""
		if withAccount {
			more = token
		}
		k, err := p.credentials(entry("x", "reg.io", more), func(o *NodeCredentialsOptions) {
			o.Account = func(context.Context, string, string) (*corev1.ServiceAccount, error) { return account, nil }
			o.Token = func(context.Context, *corev1.Pod, string) (string, error) { return "t", nil }
		})
		if err != nil {
			t.Fatal(err)
		}
		n := newTestNode(t)
		n.Manager = newImages(t, Options{Service: n.f, Node: k, Verify: Verification{
			Policy: kubeletv1beta1.NeverVerifyPreloadedImages, RecordsDir: n.dir}})
		owner, stranger, secrets := tenants()
		secrets[secretRef("key")] = secretOf("wrong", "uid-1")
		owner.Namespace, owner.Spec.ServiceAccountName = "ns", "robot"
		if err := n.pull(owner, secrets); err != nil {
			t.Fatal(err)
		}
		var tried []string
		for _, a := range n.f.auths {
			tried = append(tried, a.GetUsername())
		}
		if !slices.Equal(tried, []string{"wrong", "right"}) {
			t.Errorf("tried the users %q", tried)
		}
		n.wantPresent(owner, secrets, true)
		n.wantPresent(stranger, nil, !withAccount)
	}
}

func TestCredentialsOfAnySourceDoNotPrint(t *testing.T) {
	t.Parallel()
	for kind, want := range map[credentialKind]string{
		secretCredentials: "credentials of secret s", nodeCredentials: "credentials of the node",
		accountCredentials: "credentials of service account s",
	} {
		c := credentials{kind: kind, source: "s", password: "top-secret"}
		if got := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(got, "top-secret") || !strings.HasPrefix(got, want) {
			t.Errorf("got %s", got)
		}
	}
}
