package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	kubeletconfigv1 "k8s.io/kubelet/config/v1"

	"berth/internal/strictyaml"
	"berth/podspec"
)

// provider is a credential provider plugin.
type provider struct {
	kubeletconfigv1.CredentialProvider
	path    string // of the executable
	matches []registryPath
}

// loadProviders reads a CredentialProviderConfig, or all of a directory in the order of their names, and checks that
// the executables exist.
func loadProviders(path, binDir string) ([]provider, error) {
	files, err := providerFiles(path)
	if err != nil {
		return nil, err
	}
	if binDir == "" {
		return nil, errors.New("credential providers require --image-credential-provider-bin-dir")
	}
	var out []provider
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		list, err := parseProviders(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, p := range list {
			if slices.ContainsFunc(out, func(q provider) bool { return q.Name == p.Name }) {
				return nil, fmt.Errorf("%s: provider %s is not unique", file, p.Name)
			}
			p.path = filepath.Join(binDir, p.Name)
			fi, err := os.Stat(p.path)
			if err == nil && (fi.IsDir() || fi.Mode()&0o111 == 0) {
				err = fmt.Errorf("%s is not executable", p.path)
			}
			if err != nil {
				return nil, fmt.Errorf("credential provider %s: %w", p.Name, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// providerFiles returns the configuration files at a path, which may be a directory.
func providerFiles(path string) ([]string, error) {
	fi, err := os.Stat(path)
	if err != nil || !fi.IsDir() {
		return []string{path}, err
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) && e.Type()&fs.ModeDir == 0 {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no file with the extension .json, .yaml or .yml", path)
	}
	return out, nil
}

// parseProviders parses a CredentialProviderConfig.
func parseProviders(data []byte) (out []provider, err error) {
	docs, err := strictyaml.Parse(data, strictyaml.Limits{Documents: 1})
	if err != nil {
		return nil, err
	}
	if len(docs) == 0 {
		return nil, errors.New("is empty")
	}
	const version, kind = "kubelet.config.k8s.io/v1", "CredentialProviderConfig"
	if v, k := docs[0].Kind(); v != version || k != kind {
		return nil, fmt.Errorf("has %s %s, want %s %s", v, k, version, kind)
	}
	var c kubeletconfigv1.CredentialProviderConfig
	if _, err := docs[0].Decode(&c); err != nil {
		return nil, err
	}
	if len(c.Providers) == 0 {
		return nil, errors.New("providers: at least one is required")
	}
	for i := range c.Providers {
		p := provider{CredentialProvider: c.Providers[i]}
		if slices.ContainsFunc(out, func(q provider) bool { return q.Name == p.Name }) {
			return nil, fmt.Errorf("providers[%d].name: %s is not unique", i, p.Name)
		}
		if err := p.validate(); err != nil {
			return nil, fmt.Errorf("providers[%d].%w", i, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// validate checks a provider and parses its patterns. The error begins with the field.
func (p *provider) validate() error {
	switch {
	case p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/ "):
		return fmt.Errorf("name: %q is not the name of a file", p.Name)
	case p.APIVersion != credentialproviderv1.SchemeGroupVersion.String():
		return fmt.Errorf("apiVersion: %q is not supported, want %s", p.APIVersion, credentialproviderv1.SchemeGroupVersion)
	case p.DefaultCacheDuration == nil:
		return errors.New("defaultCacheDuration: is required")
	case p.DefaultCacheDuration.Duration < 0:
		return errors.New("defaultCacheDuration: must not be negative")
	case len(p.MatchImages) == 0:
		return errors.New("matchImages: at least one is required")
	}
	for i, pattern := range p.MatchImages {
		at, err := parseRegistryPath(pattern)
		if err != nil {
			return fmt.Errorf("matchImages[%d]: %q: %w", i, pattern, err)
		}
		p.matches = append(p.matches, at)
	}
	return p.validateToken()
}

func (p *provider) validateToken() error {
	t := p.TokenAttributes
	if t == nil {
		return nil
	}
	required := t.RequireServiceAccount != nil && *t.RequireServiceAccount
	switch {
	case t.ServiceAccountTokenAudience == "":
		return errors.New("tokenAttributes.serviceAccountTokenAudience: is required")
	case t.RequireServiceAccount == nil:
		return errors.New("tokenAttributes.requireServiceAccount: is required")
	case t.CacheType != kubeletconfigv1.TokenServiceAccountTokenCacheType &&
		t.CacheType != kubeletconfigv1.ServiceAccountServiceAccountTokenCacheType:
		return fmt.Errorf("tokenAttributes.cacheType: %q is not supported, want Token or ServiceAccount", t.CacheType)
	case len(t.RequiredServiceAccountAnnotationKeys) > 0 && !required:
		return errors.New("tokenAttributes.requireServiceAccount: must be true with " +
			"requiredServiceAccountAnnotationKeys")
	}
	keys := slices.Sorted(slices.Values(slices.Concat(t.RequiredServiceAccountAnnotationKeys,
		t.OptionalServiceAccountAnnotationKeys)))
	if len(slices.Compact(slices.Clone(keys))) < len(keys) {
		return errors.New("tokenAttributes: the annotation keys must be unique")
	}
	return nil
}

// serves reports whether the provider is called for an image. Unlike those of credentials, the path of a pattern is a
// prefix of the text, as in the kubelet.
func (p *provider) serves(n podspec.ImageName) bool {
	return slices.ContainsFunc(p.matches, func(at registryPath) bool {
		path := at.path
		at.path = ""
		return at.covers(n) && strings.HasPrefix(n.Path, path)
	})
}
