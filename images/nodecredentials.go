package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	credentialproviderv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"berth/podspec"
)

// NodeCredentialsOptions configures NodeCredentials.
type NodeCredentialsOptions struct {
	// ProviderConfig is a file with a CredentialProviderConfig or a directory with such files, and ProviderBinDir the
	// directory of the plugins. Empty: there are none.
	ProviderConfig, ProviderBinDir string
	// DockerDirs are the directories that may have the node's own Docker configuration, config.json or .dockercfg. The
	// first valid one is used.
	DockerDirs []string

	// Token requests a token of the pod's service account, and Account reads one. Nil: there is no API server.
	Token   func(ctx context.Context, pod *corev1.Pod, audience string) (string, error)
	Account func(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	// OnCall is called after each call of a plugin. May be nil.
	OnCall func(provider string, took time.Duration, err error)
	Now    func() time.Time // defaults to time.Now
}

// NodeCredentials are the credentials of the node for registries: of its Docker configuration and of credential
// provider plugins. It is safe for concurrent use.
type NodeCredentials struct {
	opt       NodeCredentialsOptions
	providers []provider
	calls     singleflight.Group

	mu       sync.Mutex
	cache    map[cacheKey]cachedAuth
	accounts map[types.NamespacedName]types.UID // that plugins were called for
	docker   keyring
	dockerAt time.Time // zero: not read yet
	problem  string    // of reading the Docker configuration
}

// cacheKey identifies credentials of a plugin.
type cacheKey struct {
	provider string
	kind     credentialproviderv1.PluginCacheKeyType
	place    string // repository or registry; empty: all
	account  string // hash of the service account; empty: none
}

type cachedAuth struct {
	auth    map[string]credentialproviderv1.AuthConfig
	expires time.Time
}

// dockerAge is the age at which the Docker configuration is read again, as upstream.
const dockerAge = 5 * time.Minute

// NewNodeCredentials reads the configuration of the plugins.
func NewNodeCredentials(o NodeCredentialsOptions) (*NodeCredentials, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OnCall == nil {
		o.OnCall = func(string, time.Duration, error) {}
	}
	k := &NodeCredentials{opt: o, cache: map[cacheKey]cachedAuth{}, accounts: map[types.NamespacedName]types.UID{}}
	if o.ProviderConfig == "" {
		return k, nil
	}
	var err error
	if k.providers, err = loadProviders(o.ProviderConfig, o.ProviderBinDir); err != nil {
		return nil, fmt.Errorf("credential provider configuration: %w", err)
	}
	return k, nil
}

// find returns the credentials for an image, in order. The warnings, without secrets, name the sources that failed. A
// nil receiver has none.
func (k *NodeCredentials) find(ctx context.Context, pod *corev1.Pod, n podspec.ImageName) ([]credentials, []string) {
	if k == nil {
		return nil, nil
	}
	ring, warnings := k.dockerConfig()
	found := ring.find(n)
	for i := range k.providers {
		p := &k.providers[i]
		if !p.serves(n) {
			continue
		}
		list, err := k.provide(ctx, p, pod, n)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("credential provider %s: %s", p.Name, err))
		}
		found = append(found, list...)
	}
	return found, warnings
}

// dockerConfig returns the credentials of the node's Docker configuration.
func (k *NodeCredentials) dockerConfig() (keyring, []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.opt.Now(); k.dockerAt.IsZero() || now.Sub(k.dockerAt) > dockerAge {
		k.dockerAt = now
		k.docker, k.problem = readDockerConfig(k.opt.DockerDirs)
	}
	if k.problem != "" {
		return k.docker, []string{k.problem}
	}
	return k.docker, nil
}

// readDockerConfig reads the first valid Docker configuration.
func readDockerConfig(dirs []string) (ring keyring, problem string) {
	for _, name := range []string{"config.json", ".dockercfg"} {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			data, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				problem = cmp.Or(problem, "Docker configuration of the node: "+err.Error())
				continue
			}
			keys, bad := parseDockerConfig(data, name == ".dockercfg")
			if len(keys) == 0 {
				if len(bad) > 0 { // other programs use the name config.json, too
					problem = cmp.Or(problem, fmt.Sprintf("Docker configuration of the node: %s: %s", path, bad[0]))
				}
				continue
			}
			slices.SortStableFunc(keys, func(a, b key) int { return b.compare(a.registryPath) })
			return keys, ""
		}
	}
	return nil, problem
}

// parseDockerConfig parses the entries of a Docker configuration. legacy is the format of .dockercfg.
func parseDockerConfig(data []byte, legacy bool) (keys []key, bad []string) {
	var file struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	into := any(&file)
	if legacy {
		into = &file.Auths
	}
	if json.Unmarshal(data, into) != nil {
		return nil, []string{"not a Docker configuration in JSON"}
	}
	for _, at := range slices.Sorted(maps.Keys(file.Auths)) {
		p, err := parseRegistryPath(at)
		if err != nil {
			bad = append(bad, "invalid registry: "+err.Error())
			continue
		}
		c, problem := readEntry(file.Auths[at])
		if problem != "" { // also an entry of a credential helper, which has none
			bad = append(bad, fmt.Sprintf("auths[%q]%s", at, problem))
			continue
		}
		c.kind = nodeCredentials
		keys = append(keys, key{p, c})
	}
	return keys, bad
}

// provide returns the credentials of a plugin for an image.
func (k *NodeCredentials) provide(
	ctx context.Context, p *provider, pod *corev1.Pod, n podspec.ImageName,
) ([]credentials, error) {
	a, err := k.account(ctx, p, pod)
	if err != nil || a.skip {
		return nil, err
	}
	auth, cached := k.cached(p, n, a)
	if !cached {
		// Other pods may wait for the same call, so it does not end with this pod.
		key := fmt.Sprintf("%q %q %q %q", p.Name, n.Repository(), a.key, a.podKey)
		call := k.calls.DoChan(key, func() (any, error) {
			return k.callProvider(context.WithoutCancel(ctx), p, pod, n, a)
		})
		select {
		case r := <-call:
			if r.Err != nil {
				return nil, r.Err
			}
			auth, _ = r.Val.(map[string]credentialproviderv1.AuthConfig)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	var ring keyring
	for _, at := range slices.Sorted(maps.Keys(auth)) {
		place, err := parseRegistryPath(at)
		if err != nil {
			continue
		}
		c := a.credentials
		c.username, c.password = auth[at].Username, auth[at].Password
		ring = append(ring, key{place, c})
	}
	slices.SortStableFunc(ring, func(a, b key) int { return b.compare(a.registryPath) })
	return ring.find(n), nil
}

// account is the service account that a plugin is called for.
type account struct {
	credentials credentials // with the source only
	annotations map[string]string
	key         string // of the cache; empty: no account
	podKey      string // the credentials are for this pod only; empty: for all pods of the account
	audience    string // of the token; empty: none
	skip        bool   // the plugin is not called for this pod
}

// account returns the service account of a pod, if the plugin requests its token.
func (k *NodeCredentials) account(ctx context.Context, p *provider, pod *corev1.Pod) (account, error) {
	none := account{credentials: credentials{kind: nodeCredentials}}
	t := p.TokenAttributes
	if t == nil {
		return none, nil
	}
	if pod.Spec.ServiceAccountName == "" || k.opt.Token == nil || k.opt.Account == nil {
		none.skip = *t.RequireServiceAccount
		return none, nil
	}
	sa, err := k.opt.Account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return account{}, fmt.Errorf("get service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	a := account{audience: t.ServiceAccountTokenAudience, annotations: map[string]string{}, credentials: credentials{
		kind: accountCredentials, namespace: sa.Namespace, source: sa.Name, uid: string(sa.UID)}}
	for _, name := range t.RequiredServiceAccountAnnotationKeys {
		if _, has := sa.Annotations[name]; !has {
			return account{}, fmt.Errorf("service account %s/%s has no annotation %s", sa.Namespace, sa.Name, name)
		}
	}
	for _, name := range slices.Concat(t.RequiredServiceAccountAnnotationKeys, t.OptionalServiceAccountAnnotationKeys) {
		if value, has := sa.Annotations[name]; has {
			a.annotations[name] = value
		}
	}
	text, err := json.Marshal([]any{sa.Namespace, sa.Name, sa.UID, a.annotations})
	if err != nil {
		return account{}, err
	}
	sum := sha256.Sum256(text)
	a.key = hex.EncodeToString(sum[:])
	if t.CacheType == kubeletconfigv1.TokenServiceAccountTokenCacheType {
		a.podKey = string(pod.UID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.accounts[types.NamespacedName{Namespace: sa.Namespace, Name: sa.Name}] = sa.UID
	return a, nil
}

// cached returns credentials of an earlier call.
func (k *NodeCredentials) cached(
	p *provider, n podspec.ImageName, a account,
) (map[string]credentialproviderv1.AuthConfig, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kind := range []credentialproviderv1.PluginCacheKeyType{
		credentialproviderv1.ImagePluginCacheKeyType, credentialproviderv1.RegistryPluginCacheKeyType,
		credentialproviderv1.GlobalPluginCacheKeyType,
	} {
		c, is := k.cache[keyOf(p, kind, n, a)]
		if is && k.opt.Now().Before(c.expires) {
			return c.auth, true
		}
	}
	return nil, false
}

func keyOf(p *provider, kind credentialproviderv1.PluginCacheKeyType, n podspec.ImageName, a account) cacheKey {
	out := cacheKey{provider: p.Name, kind: kind, account: a.key}
	switch kind {
	case credentialproviderv1.ImagePluginCacheKeyType:
		out.place = n.Repository()
	case credentialproviderv1.RegistryPluginCacheKeyType:
		out.place = n.Host
	case credentialproviderv1.GlobalPluginCacheKeyType:
	}
	return out
}

// callProvider calls a plugin and caches its response. Credentials for one pod only are not cached: the next call has
// a new token.
func (k *NodeCredentials) callProvider(
	ctx context.Context, p *provider, pod *corev1.Pod, n podspec.ImageName, a account,
) (map[string]credentialproviderv1.AuthConfig, error) {
	token := ""
	if a.audience != "" {
		var err error
		if token, err = k.opt.Token(ctx, pod, a.audience); err != nil {
			return nil, fmt.Errorf("request a service account token: %w", err)
		}
	}
	start := time.Now()
	r, err := p.call(ctx, n.Repository(), token, a.annotations)
	k.opt.OnCall(p.Name, time.Since(start), err)
	if err != nil {
		return nil, err
	}
	keep := p.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		keep = r.CacheDuration.Duration
	}
	if keep <= 0 || a.podKey != "" {
		return r.Auth, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.opt.Now()
	maps.DeleteFunc(k.cache, func(_ cacheKey, c cachedAuth) bool { return !now.Before(c.expires) })
	k.cache[keyOf(p, r.CacheKeyType, n, a)] = cachedAuth{r.Auth, now.Add(keep)}
	return r.Auth, nil
}

// accountUID returns the UID of the service account of a pod. While the API server does not respond, it is the UID at the
// last call of a plugin: without the server, no other account gets the name.
func (k *NodeCredentials) accountUID(ctx context.Context, pod *corev1.Pod) (types.UID, bool) {
	if k == nil || k.opt.Account == nil {
		return "", false
	}
	sa, err := k.opt.Account(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err == nil {
		return sa.UID, true
	}
	if apierrors.IsNotFound(err) {
		return "", false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	uid, ok := k.accounts[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}]
	return uid, ok
}
