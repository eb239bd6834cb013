package images

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// credentials authenticate to a registry. They print as the name of their source, so that they do
// not get into a text by mistake.
type credentials struct {
	kind                         credentialKind
	namespace, source, uid       string // of the Secret, or of the service account
	username, password           string
	identityToken, registryToken string
}

// credentialKind is the kind of the source of credentials.
type credentialKind string

const (
	secretCredentials  credentialKind = ""        // a pull secret of the pod
	nodeCredentials    credentialKind = "node"    // of the node, for all pods
	accountCredentials credentialKind = "account" // for the pods of a service account
)

func (c credentials) String() string {
	switch c.kind {
	case nodeCredentials:
		return "credentials of the node"
	case accountCredentials:
		return "credentials of service account " + c.source
	case secretCredentials:
	}
	return "credentials of secret " + c.source
}

func (c credentials) GoString() string { return c.String() }

// secrets returns the values that must not be shown.
func (c credentials) secrets() []string {
	return []string{c.password, c.identityToken, c.registryToken}
}

// keyring has the credentials of a pod, most specific first.
type keyring []key

type key struct {
	registryPath
	credentials
}

// registryPath is the part of a registry that credentials are for. Labels of the host may be
// patterns.
type registryPath struct {
	host, port string
	path       string // without leading and trailing slashes; empty: all
}

// newKeyring parses the pull secrets that a pod references. Invalid ones are skipped. The warnings
// name what was skipped and why, without its content.
func newKeyring(namespace string, refs []corev1.LocalObjectReference, objects plan.Objects) (keyring, []string) {
	var ring keyring
	var warnings []string
	for _, ref := range refs {
		if ref.Name == "" {
			continue
		}
		keys, bad := readSecret(namespace, ref.Name, objects[plan.Ref{Kind: plan.Secret, Name: ref.Name}])
		ring = append(ring, keys...)
		for _, b := range bad {
			warnings = append(warnings, fmt.Sprintf("pull secret %q: %s", ref.Name, b))
		}
	}
	slices.SortStableFunc(ring, func(a, b key) int { return b.compare(a.registryPath) })
	return ring, warnings
}

// compare orders by specificity: by the length of the path, then a literal host before a pattern,
// then a longer pattern before a shorter one.
func (p registryPath) compare(q registryPath) int {
	literal := func(p registryPath) int { return len(strings.ReplaceAll(p.host, "*", "")) }
	pattern := func(p registryPath) int {
		if strings.ContainsAny(p.host, `*?[\`) {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(len(p.path), len(q.path)),
		cmp.Compare(pattern(p), pattern(q)),
		cmp.Compare(literal(p), literal(q)),
	)
}

// find returns the credentials to try for an image, in order and without duplicates.
func (k keyring) find(n podspec.ImageName) []credentials {
	var found []credentials
	for _, key := range k {
		if !key.covers(n) {
			continue
		}
		known := slices.ContainsFunc(found, func(c credentials) bool {
			return c.sameValues(key.credentials)
		})
		if !known {
			found = append(found, key.credentials)
		}
	}
	return found
}

// sameValues reports whether credentials of any source have the same values.
func (c credentials) sameValues(d credentials) bool {
	d.kind, d.namespace, d.source, d.uid = c.kind, c.namespace, c.source, c.uid
	return c == d
}

// covers reports whether an image is inside the path: the same number of host labels, each
// matching, the same port, and a path that starts with the whole path of p.
func (p registryPath) covers(n podspec.ImageName) bool {
	host, port := podspec.SplitPort(n.Host)
	if port == "443" {
		port = "" // the default port
	}
	if port != p.port || !matchHost(p.host, strings.ToLower(host)) {
		return false
	}
	return p.path == "" || n.Path == p.path || strings.HasPrefix(n.Path, p.path+"/")
}

func matchHost(pattern, host string) bool {
	if strings.HasPrefix(pattern, "[") || strings.HasPrefix(host, "[") {
		return pattern == host // IPv6 address
	}
	ps, hs := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(ps) != len(hs) {
		return false
	}
	for i := range ps {
		if ok, err := path.Match(ps[i], hs[i]); !ok || err != nil {
			return false
		}
	}
	return true
}

// parseRegistryPath parses a key of a Docker configuration: [SCHEME://]HOST[:PORT][/PATH]. The API
// paths /v1/ and /v2/ of a registry mean the whole registry.
func parseRegistryPath(s string) (registryPath, error) {
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "https", s
	}
	hostport, p, _ := strings.Cut(rest, "/")
	if strings.Contains(hostport, "@") {
		return registryPath{}, fmt.Errorf("credentials are not expected in a registry address")
	}
	host, port := podspec.SplitPort(strings.ToLower(hostport))
	if host == "" || strings.ContainsAny(host, " \t\n\\") || strings.Trim(port, "0123456789") != "" {
		return registryPath{}, fmt.Errorf("it has no registry host")
	}
	if scheme == "https" && port == "443" {
		port = ""
	}
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		host = "docker.io"
	}
	p = strings.Trim(p, "/")
	for _, api := range []string{"v1", "v2"} {
		if p == api {
			p = ""
		} else if after, ok := strings.CutPrefix(p, api+"/"); ok {
			p = after
		}
	}
	return registryPath{host: host, port: port, path: p}, nil
}

// readSecret parses the keys of one pull secret of either type.
func readSecret(namespace, name string, o plan.Object) (keys []key, bad []string) {
	switch {
	case o.Err != "":
		return nil, []string{o.Err}
	case o.Missing || o.Secret == nil:
		return nil, []string{"not found"}
	}
	var entries map[string]json.RawMessage
	field := "data[" + corev1.DockerConfigJsonKey + "]"
	if raw, ok := secretData(o.Secret, corev1.DockerConfigJsonKey); ok {
		var file struct {
			Auths map[string]json.RawMessage `json:"auths"`
		}
		if json.Unmarshal(raw, &file) != nil {
			return nil, []string{field + ": not a Docker configuration in JSON with a map of registries under auths"}
		}
		entries, field = file.Auths, field+".auths"
	} else if raw, ok := secretData(o.Secret, corev1.DockerConfigKey); ok {
		field = "data[" + corev1.DockerConfigKey + "]"
		if json.Unmarshal(raw, &entries) != nil {
			return nil, []string{field + ": not a map of registries in JSON"}
		}
	} else {
		return nil, []string{fmt.Sprintf("has neither %s nor data[%s]", field, corev1.DockerConfigKey)}
	}
	if len(entries) == 0 {
		return nil, []string{field + ": names no registry"}
	}
	for i, at := range slices.Sorted(maps.Keys(entries)) {
		p, err := parseRegistryPath(at)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: registry %d: %s", field, i+1, err))
			continue
		}
		c, problem := readEntry(entries[at])
		if problem != "" {
			bad = append(bad, fmt.Sprintf("%s[%q]%s", field, at, problem))
			continue
		}
		c.namespace, c.source, c.uid = namespace, name, string(o.Secret.UID)
		keys = append(keys, key{p, c})
	}
	return keys, bad
}

func secretData(s *corev1.Secret, key string) ([]byte, bool) {
	if text, ok := s.StringData[key]; ok {
		return []byte(text), true
	}
	data, ok := s.Data[key]
	return data, ok
}

// readEntry parses the entry of one registry. problem names the invalid field.
func readEntry(raw json.RawMessage) (c credentials, problem string) {
	var e struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	}
	// The error is not returned, because it may quote the secret.
	if json.Unmarshal(raw, &e) != nil {
		return c, ": not an object of strings"
	}
	c = credentials{username: e.Username, password: e.Password, identityToken: e.IdentityToken,
		registryToken: e.RegistryToken}
	if e.Auth != "" {
		user, password, ok := decodeAuth(e.Auth)
		if !ok {
			return credentials{}, ".auth: not the base64 of USER:PASSWORD"
		}
		c.username, c.password = user, password
	}
	if c == (credentials{}) {
		return c, ": has no credentials"
	}
	return c, ""
}

func decodeAuth(s string) (user, password string, ok bool) {
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(s), "="))
	if err != nil {
		return "", "", false
	}
	user, password, ok = strings.Cut(string(raw), ":")
	return user, strings.TrimRight(password, "\x00"), ok && user != ""
}
