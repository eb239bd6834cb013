package images

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// dockerConfig returns a pull secret with one user per registry.
func dockerConfig(users map[string]string) plan.Object {
	auths := map[string]any{}
	for at, user := range users {
		auths[at] = map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(user + ":password-of-" + user))}
	}
	raw, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		panic(err)
	}
	return dockerConfigRaw(raw)
}

func dockerConfigRaw(raw []byte) plan.Object {
	return plan.Object{Secret: &corev1.Secret{Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: raw}}}
}

func secretRef(name string) plan.Ref { return plan.Ref{Kind: plan.Secret, Name: name} }

// usersFor returns the users to try for an image, in order.
func usersFor(t *testing.T, image string, ring keyring) []string {
	t.Helper()
	n, err := podspec.ParseImageName(image)
	if err != nil {
		t.Fatal(err)
	}
	var users []string
	for _, c := range ring.find(n) {
		users = append(users, c.username)
	}
	return users
}

func TestKeyringMatching(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		at    string
		image string
		want  bool
	}{
		{"a plain host matches", "reg.io", "reg.io/a:1", true},
		{"another host does not match", "reg.io", "evil-reg.io/a:1", false},
		{"a subdomain does not match", "reg.io", "a.reg.io/a:1", false},
		{"a scheme is ignored", "https://reg.io", "reg.io/a:1", true},
		{"an insecure scheme is ignored", "http://reg.io", "reg.io/a:1", true},
		{"hosts are case-insensitive", "REG.io", "Reg.IO/a:1", true},
		{"a port must be the same", "reg.io:5000", "reg.io:5000/a:1", true},
		{"another port does not match", "reg.io:5000", "reg.io:5001/a:1", false},
		{"a port does not match a host without a port", "reg.io:5000", "reg.io/a:1", false},
		{"a host without a port does not match a port", "reg.io", "reg.io:5000/a:1", false},
		{"port 443 matches the default port", "reg.io:443", "reg.io/a:1", true},
		{"the default port matches 443", "reg.io", "reg.io:443/a:1", true},
		{"port 443 with http does not match the default port", "http://reg.io:443", "reg.io/a:1", false},
		{"a path matches itself", "reg.io/team/app", "reg.io/team/app:1", true},
		{"a path matches a subpath", "reg.io/team", "reg.io/team/app:1", true},
		{"a path does not match another path with the same prefix", "reg.io/team", "reg.io/team-evil/app:1", false},
		{"a longer path does not match", "reg.io/team/app", "reg.io/team:1", false},
		{"a trailing slash is ignored", "reg.io/team/", "reg.io/team/app:1", true},
		{"an API path matches the whole registry", "https://reg.io/v2/", "reg.io/a:1", true},
		{"an API path before a path is ignored", "https://reg.io/v1/team", "reg.io/team/a:1", true},
		{"a pattern matches one label", "*.reg.io", "a.reg.io/x:1", true},
		{"a pattern does not match two labels", "*.reg.io", "b.a.reg.io/x:1", false},
		{"a pattern does not match zero labels", "*.reg.io", "reg.io/x:1", false},
		{"a pattern matches part of a label", "reg-*.io", "reg-eu.io/x:1", true},
		{"a pattern with port and path", "*.reg.io:5000/team", "a.reg.io:5000/team/x:1", true},
		{"an invalid pattern matches nothing", "[a-.reg.io", "a.reg.io/x:1", false},
		{"Docker's index address matches docker.io", "https://index.docker.io/v1/", "nginx:1", true},
		{"docker.io matches short names", "docker.io", "nginx:1", true},
		{"Docker's registry host matches docker.io", "registry-1.docker.io", "library/nginx:1", true},
		{"a path of docker.io", "docker.io/team", "team/app:1", true},
		{"a path of docker.io does not match the library", "docker.io/team", "nginx:1", false},
		{"docker.io matches no other host", "docker.io", "quay.io/nginx:1", false},
		{"an IPv6 address", "[::1]:5000", "[::1]:5000/a:1", true},
	} {
		ring, warnings := newKeyring("ns", []corev1.LocalObjectReference{{Name: "s"}},
			plan.Objects{secretRef("s"): dockerConfig(map[string]string{c.at: "u"})})
		if len(warnings) > 0 {
			t.Errorf("%s: %v", c.name, warnings)
		}
		if got := len(usersFor(t, c.image, ring)) == 1; got != c.want {
			t.Errorf("%s: key %q for image %q: got %v, want %v", c.name, c.at, c.image, got, c.want)
		}
	}
}

func TestKeyringOrder(t *testing.T) {
	t.Parallel()
	ring, _ := newKeyring("ns", []corev1.LocalObjectReference{{Name: "wide"}, {Name: "narrow"}, {Name: "again"}},
		plan.Objects{
			secretRef("wide"): dockerConfig(map[string]string{"*.reg.io": "pattern", "a.reg.io": "host",
				"other.io": "other"}),
			secretRef("narrow"): dockerConfig(map[string]string{"a.reg.io/team": "path", "*.reg.io/team/app": "deep"}),
			secretRef("again"):  dockerConfig(map[string]string{"a.reg.io": "second"}),
		})
	got := usersFor(t, "a.reg.io/team/app:1", ring)
	if want := []string{"deep", "path", "host", "second", "pattern"}; !slices.Equal(got, want) {
		t.Errorf("got order %v, want %v", got, want)
	}
}

func TestKeyringDeduplicates(t *testing.T) {
	t.Parallel()
	ring, _ := newKeyring("ns", []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}, plan.Objects{
		secretRef("a"): dockerConfig(map[string]string{"reg.io": "u"}),
		secretRef("b"): dockerConfig(map[string]string{"reg.io/team": "u"}),
	})
	if got := usersFor(t, "reg.io/team/app", ring); len(got) != 1 {
		t.Errorf("got credentials %v", got)
	}
}

func TestReadEntry(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]credentials{
		`{"username":"u","password":"p"}`:                    {username: "u", password: "p"},
		`{"auth":"dTpw","email":"e"}`:                        {username: "u", password: "p"},
		`{"auth":"dTpw","username":"x","password":"y"}`:      {username: "u", password: "p"},
		`{"auth":"dTpwOnc"}`:                                 {username: "u", password: "p:w"},
		`{"auth":"dTpwOnc="}`:                                {username: "u", password: "p:w"},
		`{"auth":"dTo=","identitytoken":"t"}`:                {username: "u", identityToken: "t"},
		`{"registrytoken":"r"}`:                              {registryToken: "r"},
		`{"username":"u","password":"p","unknown":{"a":[]}}`: {username: "u", password: "p"},
	} {
		got, problem := readEntry(json.RawMessage(entry))
		if got != want || problem != "" {
			t.Errorf("entry %s: unexpected credentials (%s)", entry, problem)
		}
	}
}

func TestKeyringSecretFormats(t *testing.T) {
	t.Parallel()
	old := plan.Object{Secret: &corev1.Secret{Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"reg.io":{"auth":"dTpw"}}`)}}}
	text := plan.Object{Secret: &corev1.Secret{
		StringData: map[string]string{corev1.DockerConfigJsonKey: `{"auths":{"reg.io":{"auth":"dTpw"}}}`}}}
	for form, o := range map[string]plan.Object{"dockercfg": old, "stringData": text} {
		ring, warnings := newKeyring("ns", []corev1.LocalObjectReference{{Name: "s"}}, plan.Objects{secretRef("s"): o})
		if len(ring) != 1 || len(warnings) != 0 {
			t.Errorf("%s: %d keys, warnings %v", form, len(ring), warnings)
		}
	}
}

func TestKeyringInvalidSecretWarnings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, raw, want string
		good            int
	}{
		{"invalid JSON", `hunter2`, `pull secret "s": data[.dockerconfigjson]: not a Docker configuration`, 0},
		{"auths of another type", `{"auths":"hunter2"}`, `not a Docker configuration`, 0},
		{"no registries", `{"auths":{}}`, `names no registry`, 0},
		{"auth is not base64", `{"auths":{"reg.io":{"auth":"hunter2!"}}}`,
			`data[.dockerconfigjson].auths["reg.io"].auth: not the base64 of USER:PASSWORD`, 0},
		{"auth without a colon", `{"auths":{"reg.io":{"auth":"aHVudGVyMg=="}}}`, `["reg.io"].auth`, 0},
		{"a password that is a number", `{"auths":{"reg.io":{"password":1234567}}}`,
			`["reg.io"]: not an object of strings`,
			0},
		{"an empty entry", `{"auths":{"reg.io":{}}}`, `["reg.io"]: has no credentials`, 0},
		{"credentials in the address", `{"auths":{"https://u:hunter2@reg.io":{"auth":"dTpw"}}}`,
			`registry 1: credentials are not expected`, 0},
		{"credentials as an address", `{"auths":{"user:hunter2":{"auth":"dTpw"}}}`,
			`registry 1: it has no registry host`, 0},
		{"an invalid entry does not affect others", `{"auths":{"a.io":{"auth":"hunter2!"},"b.io":{"auth":"dTpw"}}}`,
			`auths["a.io"].auth`, 1},
	} {
		ring, warnings := newKeyring("ns", []corev1.LocalObjectReference{{Name: "s"}},
			plan.Objects{secretRef("s"): dockerConfigRaw([]byte(c.raw))})
		all := strings.Join(warnings, "; ")
		if len(ring) != c.good || !strings.Contains(all, c.want) {
			t.Errorf("%s: %d keys, warnings %q, want %q", c.name, len(ring), all, c.want)
		}
		if strings.Contains(all, "hunter2") || strings.Contains(all, "1234567") || strings.Contains(all, "aHVudGVy") {
			t.Errorf("%s: the warning contains the secret: %q", c.name, all)
		}
	}
}

func TestKeyringMissingSecretWarnings(t *testing.T) {
	t.Parallel()
	refs := []corev1.LocalObjectReference{{Name: "gone"}, {Name: "unknown"}, {Name: "broken"}, {Name: "empty"}, {}}
	ring, warnings := newKeyring("ns", refs, plan.Objects{
		secretRef("gone"):   {Version: plan.Version{Missing: true}},
		secretRef("broken"): {Version: plan.Version{Err: "the server does not answer"}},
		secretRef("empty"):  {Secret: &corev1.Secret{}},
	})
	want := []string{
		`pull secret "gone": not found`, `pull secret "unknown": not found`,
		`pull secret "broken": the server does not answer`,
		`pull secret "empty": has neither data[.dockerconfigjson] nor data[.dockercfg]`,
	}
	if len(ring) != 0 || !slices.Equal(warnings, want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
}

func TestCredentialsDoNotPrint(t *testing.T) {
	t.Parallel()
	c := credentials{source: "s", username: "user", password: "hunter2", identityToken: "hunter3",
		registryToken: "hunter4"}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, c); strings.Contains(s, "hunter") {
			t.Errorf("%s prints credentials: %s", format, s)
		}
	}
}

func FuzzKeyring(f *testing.F) {
	for _, s := range []string{
		`{"auths":{"reg.io":{"auth":"dTpw"}}}`, `{"auths":{"*.reg.io:5/a":{"username":"u","password":"p"}}}`,
		`{"auths":null}`, `[]`,
		`{"auths":{"":{"auth":"dTpw"},"/":{"auth":"dTpw"},"https://":{}}}`,
		`{"auths":{"[::1]":{"auth":"dTpw"},"[":{"auth":"dTpw"}}}`,
	} {
		f.Add([]byte(s), "a.reg.io:5/a/b:1")
	}
	f.Fuzz(func(t *testing.T, raw []byte, image string) {
		ring, _ := newKeyring("ns", []corev1.LocalObjectReference{{Name: "s"}},
			plan.Objects{secretRef("s"): dockerConfigRaw(raw)})
		n, err := podspec.ParseImageName(image)
		if err != nil {
			return
		}
		for _, c := range ring.find(n) {
			if c.source != "s" || c == (credentials{source: "s"}) {
				t.Errorf("found credentials that do not exist")
			}
		}
		for _, k := range ring {
			if k.host == "" || strings.HasPrefix(k.path, "/") || strings.HasSuffix(k.path, "/") {
				t.Errorf("got an invalid key %q %q", k.host, k.path)
			}
		}
	})
}

func FuzzWarningsShowNoSecret(f *testing.F) {
	f.Add("hunter2-password", "auth", "reg.io")
	f.Add("hunter2-password", "password", "reg.io/x")
	f.Add("hunter2-password", "identitytoken", "u@reg.io")
	f.Fuzz(func(t *testing.T, secret, field, at string) {
		if len(secret) < 12 || strings.Contains(field, secret) || strings.Contains(at, secret) ||
			strings.Contains("pull secret data .dockerconfigjson auths not the base64 of USER:PASSWORD an object of "+
				"strings has no credentials", secret) {
			return
		}
		raw, err := json.Marshal(map[string]any{"auths": map[string]any{at: map[string]string{field: secret}}})
		if err != nil {
			return
		}
		for _, o := range []plan.Object{dockerConfigRaw(raw), dockerConfigRaw([]byte(secret)),
			dockerConfigRaw(raw[:len(raw)-1])} {
			_, warnings := newKeyring("ns", []corev1.LocalObjectReference{{Name: "s"}}, plan.Objects{secretRef("s"): o})
			if all := strings.Join(warnings, "; "); strings.Contains(all, secret) {
				t.Errorf("the warning contains the secret: %q", all)
			}
		}
	})
}
