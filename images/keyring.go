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

// credentials are what a registry may want to see. They print as the name of
// their source, so that they get into no text by mistake.
type credentials struct {
	namespace, source, uid       string // of the Secret
	username, password           string
	identityToken, registryToken string
}

func (c credentials) String() string   { return "credentials of secret " + c.source }
func (c credentials) GoString() string { return c.String() }

// secrets lists what must not be shown.
func (c credentials) secrets() []string {
	return []string{c.password, c.identityToken, c.registryToken}
}

// keyring holds the credentials of a pod, the most specific first.
type keyring []key

type key struct {
	place
	credentials
}

// place is the part of the registry world that a key is for. Labels of the host
// may be patterns.
type place struct {
	host, port string
	path       string // without slashes at its ends; empty: all
}

// newKeyring reads the pull secrets that a pod names. What cannot be used is
// skipped; the warnings say what and why, never what is in it.
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
	slices.SortStableFunc(ring, func(a, b key) int { return b.compare(a.place) })
	return ring, warnings
}

// compare orders places by how much they say: by the length of the path, then a
// plain host before a pattern, then a longer pattern before a shorter one.
func (p place) compare(q place) int {
	literal := func(p place) int { return len(strings.ReplaceAll(p.host, "*", "")) }
	pattern := func(p place) int {
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

// find returns the credentials to try for an image, in order, each once.
func (k keyring) find(n podspec.ImageName) []credentials {
	var found []credentials
	for _, key := range k {
		if !key.covers(n) {
			continue
		}
		known := slices.ContainsFunc(found, func(c credentials) bool {
			c.namespace, c.source, c.uid = key.namespace, key.source, key.uid
			return c == key.credentials
		})
		if !known {
			found = append(found, key.credentials)
		}
	}
	return found
}

// covers reports whether an image lies in the place: the same number of host
// labels, each matching, the same port, and a path that begins with the place's
// whole path.
func (p place) covers(n podspec.ImageName) bool {
	host, port := podspec.SplitPort(n.Host)
	if port == "443" {
		port = "" // the port that is meant where none is named
	}
	if port != p.port || !matchHost(p.host, strings.ToLower(host)) {
		return false
	}
	return p.path == "" || n.Path == p.path || strings.HasPrefix(n.Path, p.path+"/")
}

func matchHost(pattern, host string) bool {
	if strings.HasPrefix(pattern, "[") || strings.HasPrefix(host, "[") {
		return pattern == host // an IPv6 address
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

// parsePlace reads a key of a Docker configuration: [SCHEME://]HOST[:PORT][/PATH],
// where the paths /v1/ and /v2/ of a registry's API mean the whole registry.
func parsePlace(s string) (place, error) {
	scheme, rest, found := strings.Cut(s, "://")
	if !found {
		scheme, rest = "https", s
	}
	hostport, p, _ := strings.Cut(rest, "/")
	if strings.Contains(hostport, "@") {
		return place{}, fmt.Errorf("credentials are not expected in a registry's address")
	}
	host, port := podspec.SplitPort(strings.ToLower(hostport))
	if host == "" || strings.ContainsAny(host, " \t\n\\") || strings.Trim(port, "0123456789") != "" {
		return place{}, fmt.Errorf("there is no registry host in it")
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
	return place{host: host, port: port, path: p}, nil
}

// readSecret reads the keys of one pull secret of either type.
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
		p, err := parsePlace(at)
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

// readEntry reads one registry's entry; problem says which field is wrong.
func readEntry(raw json.RawMessage) (c credentials, problem string) {
	var e struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	}
	// The error is not passed on: it may quote what it stumbled over.
	if json.Unmarshal(raw, &e) != nil {
		return c, ": not an object of strings"
	}
	c = credentials{username: e.Username, password: e.Password, identityToken: e.IdentityToken, registryToken: e.RegistryToken}
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
