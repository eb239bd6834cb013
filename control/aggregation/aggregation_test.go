package aggregation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

func TestGroupVersionOfPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]schema.GroupVersion{
		"/api":                       {Version: "v1"},
		"/api/v1/pods":               {Version: "v1"},
		"/apis":                      {},
		"/apis/":                     {},
		"/apis/example.com":          {},
		"/apis/example.com/":         {},
		"/apis/example.com/v1":       {Group: "example.com", Version: "v1"},
		"/apis/example.com/v1/":      {Group: "example.com", Version: "v1"},
		"/apis/example.com/v1/a/b/c": {Group: "example.com", Version: "v1"},
		"//apis/example.com/v1":      {},
		"/apisx/example.com/v1":      {},
		"/apiversion":                {},
	} {
		if got := groupVersionOf(path); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
}

func remoteAPIService(group, version string, priority int32) *apiregistrationv1.APIService {
	out := localAPIService(schema.GroupVersion{Group: group, Version: version}, 1000, priority)
	out.Spec.Service = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "extension",
		Port: new(int32(443))}
	return out
}

func TestRemoteGroupsAreAddedByPriority(t *testing.T) {
	t.Parallel()
	version := func(group, name string) metav1.GroupVersionForDiscovery {
		return metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + name, Version: name}
	}
	existing := []metav1.APIGroup{{Name: "apps", Versions: []metav1.GroupVersionForDiscovery{version("apps", "v1")},
		PreferredVersion: version("apps", "v1")}}
	got := withRemoteGroups(existing, []*apiregistrationv1.APIService{
		localAPIService(schema.GroupVersion{Group: "local", Version: "v1"}, 1, 1),
		remoteAPIService("example.com", "v1beta1", 5), remoteAPIService("example.com", "v1", 10),
		remoteAPIService("apps", "v1", 1), remoteAPIService("apps", "v9", 100), remoteAPIService("", "v1", 1),
	})
	want := []metav1.APIGroup{
		{Name: "apps", Versions: []metav1.GroupVersionForDiscovery{version("apps", "v1"), version("apps", "v9")},
			PreferredVersion: version("apps", "v1")},
		{Name: "example.com", Versions: []metav1.GroupVersionForDiscovery{version("example.com", "v1"),
			version("example.com", "v1beta1")}, PreferredVersion: version("example.com", "v1")},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBuiltInAPIServicesAreInTheOrderOfDiscovery(t *testing.T) {
	t.Parallel()
	all := builtInAPIServices([]schema.GroupVersion{{Version: "v1"}, {Group: "autoscaling", Version: "v2"},
		{Group: "autoscaling", Version: "v1"}})
	if all[0].Name != "v1." || all[1].Name != "v2.autoscaling" {
		t.Errorf("got names %s and %s", all[0].Name, all[1].Name)
	}
	if all[0].Spec.GroupPriorityMinimum <= all[1].Spec.GroupPriorityMinimum ||
		all[1].Spec.GroupPriorityMinimum != all[2].Spec.GroupPriorityMinimum ||
		all[1].Spec.VersionPriority <= all[2].Spec.VersionPriority {
		t.Errorf("got priorities %v %v %v", all[0].Spec, all[1].Spec, all[2].Spec)
	}
}

// resourceManager stands for the discovery document of a server.
type resourceManager struct {
	aggregated.ResourceManager

	published map[string]apidiscoveryv2.DiscoveryFreshness
}

func (m resourceManager) AddGroupVersion(group string, in apidiscoveryv2.APIVersionDiscovery) {
	m.published[group] = in.Freshness
}

func (m resourceManager) RemoveGroupVersion(gv metav1.GroupVersion) { delete(m.published, gv.Group) }

func TestResourcesOfAStaleGroupStayRecorded(t *testing.T) {
	t.Parallel()
	manager, changes := resourceManager{published: map[string]apidiscoveryv2.DiscoveryFreshness{}}, 0
	d := newDiscovered(manager, func(schema.GroupVersion) string { return "hash" }, func() { changes++ })
	resource := func(verbs ...string) apidiscoveryv2.APIResourceDiscovery {
		return apidiscoveryv2.APIResourceDiscovery{Resource: "flunders", Scope: apidiscoveryv2.ScopeNamespace,
			ResponseKind: &metav1.GroupVersionKind{Kind: "Flunder"}, Verbs: verbs}
	}
	add := func(version string, verbs ...string) {
		d.AddGroupVersion("example.com", apidiscoveryv2.APIVersionDiscovery{Version: version,
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
			Resources: []apidiscoveryv2.APIResourceDiscovery{resource(verbs...)}})
	}
	add("v1beta1", "get", "list", "watch", "delete")
	add("v1", "get", "list", "watch", "delete")
	add("v2", "get", "list")
	d.AddGroupVersion("example.com", apidiscoveryv2.APIVersionDiscovery{Version: "v1",
		Freshness: apidiscoveryv2.DiscoveryFreshnessStale})
	if manager.published["example.com"] != apidiscoveryv2.DiscoveryFreshnessStale {
		t.Errorf("published as %s, want stale", manager.published["example.com"])
	}
	of := schema.GroupResource{Group: "example.com", Resource: "flunders"}
	got := collectable(d.all(), func(string) bool { return false })
	if len(got) != 1 || got[of].Version != "v1" || !got[of].Namespaced || got[of].Kind != "Flunder" {
		t.Errorf("collectable resources: got %v, want flunders of v1", got)
	}
	if got := collectable(d.all(), func(group string) bool { return group == "example.com" }); len(got) != 0 {
		t.Errorf("collectable resources of a reserved group: got %v", got)
	}
	for _, version := range []string{"v1", "v1beta1", "v2"} {
		d.RemoveGroupVersion(metav1.GroupVersion{Group: "example.com", Version: version})
	}
	if changes != 6 || len(d.all()) != 0 {
		t.Errorf("after the removal: got %d changes and %v, want 6 and nothing", changes, d.all())
	}
}

// resolver resolves all Services to one host, or none.
type resolver struct{ host string }

func (r resolver) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	if r.host == "" {
		return nil, errors.New("no endpoints")
	}
	return &url.URL{Host: r.host}, nil
}

func TestBackendForwardsTheUserButNoCredentials(t *testing.T) {
	t.Parallel()
	var got *http.Request
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	b := &backend{service: *remoteAPIService("example.com", "v1", 1).Spec.Service, available: true,
		services: resolver{server.Listener.Addr().String()}, transport: server.Client().Transport}
	jane := &user.DefaultInfo{Name: "jane", UID: "u1", Groups: []string{"readers"},
		Extra: map[string][]string{"Scope": {"x"}}}
	call := func(b *backend, as user.Info) int {
		r := httptest.NewRequest(http.MethodGet, "/apis/example.com/v1/flunders?limit=5", http.NoBody)
		ctx := request.WithRequestInfo(context.Background(), &request.RequestInfo{})
		if as != nil {
			ctx = request.WithUser(ctx, as)
		}
		r.Header.Set("X-Remote-User", "admin")
		r.Header.Set("X-Remote-Group", "system:masters")
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r.WithContext(ctx))
		return w.Code
	}
	if code := call(b, jane); code != http.StatusTeapot {
		t.Fatalf("got status %d", code)
	}
	if got.URL.String() != "/apis/example.com/v1/flunders?limit=5" {
		t.Errorf("got URL %s", got.URL)
	}
	for header, want := range map[string]string{"X-Remote-User": "jane", "X-Remote-Group": "readers",
		"X-Remote-Uid": "u1", "X-Remote-Extra-Scope": "x"} {
		if values := got.Header.Values(header); len(values) != 1 || values[0] != want {
			t.Errorf("%s: got %q, want %q", header, values, want)
		}
	}
	for name, row := range map[string]struct {
		change func(*backend)
		user   user.Info
		want   int
	}{
		"unavailable":  {func(b *backend) { b.available = false }, jane, http.StatusServiceUnavailable},
		"no endpoints": {func(b *backend) { b.services = resolver{} }, jane, http.StatusServiceUnavailable},
		"no transport": {func(b *backend) { b.err = errors.New("invalid CA") }, jane, http.StatusInternalServerError},
		"no user":      {func(*backend) {}, nil, http.StatusInternalServerError},
		"wrong CA":     {func(b *backend) { b.transport = http.DefaultTransport }, jane, http.StatusServiceUnavailable},
	} {
		other := *b
		row.change(&other)
		if code := call(&other, row.user); code != row.want {
			t.Errorf("%s: got status %d, want %d", name, code, row.want)
		}
	}
}

func TestAuthenticationConfigMap(t *testing.T) {
	t.Parallel()
	authority := func() []byte {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "ca"}, key)
		if err != nil {
			t.Fatal(err)
		}
		text, err := cert.EncodeCertificates(c)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	client, first, second := fake.NewClientset(), authority(), authority()
	published := func(a Authentication) map[string]string {
		for range 2 { // creates or updates, and then changes nothing
			if err := a.Publish(t.Context(), client); err != nil {
				t.Fatal(err)
			}
		}
		config, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), AuthenticationConfigMap,
			metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return config.Data
	}
	data := published(Authentication{ClientCA: first, FrontProxyCA: first, FrontProxyName: "proxy"})
	if data[clientCAKey] != string(first) || data["requestheader-allowed-names"] != `["proxy"]` {
		t.Errorf("got %v", data)
	}
	data = published(Authentication{ClientCA: second, FrontProxyCA: first, FrontProxyName: "proxy", Shared: true})
	if data[clientCAKey] != string(first)+string(second) || data[requestHeaderCAKey] != string(first) {
		t.Errorf("servers with a common store: got %v, want both authorities", data)
	}
	data = published(Authentication{ClientCA: second, FrontProxyCA: second, FrontProxyName: "proxy"})
	if data[clientCAKey] != string(second) || strings.Contains(data[requestHeaderCAKey], string(first)) {
		t.Errorf("after a rotation: got %v, want only the new authority", data)
	}
}
