package control

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"berth/control/scheme"
	"berth/control/scheme/openapi"
)

const (
	openAPIPrefix = "/openapi/"
	openAPIV2     = "/openapi/v2"
	// openAPIIndex lists the documents with their hashes. kubectl requests it at each start and
	// usually has the documents in its disk cache.
	openAPIIndex = "/openapi/v3"
)

// addOpenAPI adds the OpenAPI definitions, which the library needs for server-side apply. The
// documents themselves are served by serveOpenAPI.
func addOpenAPI(config *genericapiserver.Config) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.Definitions,
		scheme.DefinitionNamer())
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(
		openapi.Definitions,
		scheme.DefinitionNamer(),
	)
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "berth-control", "berth-control"
	config.SkipOpenAPIInstallation = true
}

// serveOpenAPI serves /openapi/v2 and /openapi/v3. All servers of a process with the same version
// serve the same built-in kinds and share their documents, with the TTL of the first one.
func serveOpenAPI(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config,
	custom customDocuments, ttl time.Duration) {
	shared, _ := documentCaches.LoadOrStore(
		config.OpenAPIConfig.Info.Version,
		newDocumentCache(ttl, func() *documentsV2 {
			m := mux.NewPathRecorderMux("openapi-v2")
			_, v2 := routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(server.Handler.GoRestfulContainer, m)
			return &documentsV2{m, v2}
		}, func() http.Handler {
			m := mux.NewPathRecorderMux("openapi-v3")
			routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(server.Handler.GoRestfulContainer, m)
			return m
		}),
	)
	//nolint:errcheck,forcetypeassert // documentCaches holds no other type
	merged := newMergedDocuments(shared.(*documentCache), custom, ttl)
	server.Handler.NonGoRestfulMux.HandlePrefix(openAPIPrefix, merged)
}

// documentCaches maps server versions to *documentCache.
var documentCaches sync.Map

// documentsV2 serves the document of OpenAPI v2 for the built-in kinds.
type documentsV2 struct {
	http.Handler

	swagger *spec.Swagger
}

// documentCache serves the documents of the built-in kinds. Both versions
// together take 30 MiB, and each takes more than half a second to build. They are built on request and
// dropped when they have not been requested for the TTL. kubectl requests v2 only if a request for v3
// fails. The index of v3 stays cached.
type documentCache struct {
	v2 *expiring[*documentsV2]
	v3 *expiring[http.Handler]

	mu    sync.Mutex
	index *recordedResponse // nil: never requested
}

func newDocumentCache(ttl time.Duration, buildV2 func() *documentsV2, buildV3 func() http.Handler) *documentCache {
	return &documentCache{
		v2: &expiring[*documentsV2]{ttl: ttl, build: buildV2},
		v3: &expiring[http.Handler]{ttl: ttl, build: buildV3},
	}
}

func (d *documentCache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case openAPIV2:
		d.v2.get().ServeHTTP(w, r)
		return
	case openAPIIndex:
		if index := d.cachedIndex(r.Context()); index != nil {
			maps.Copy(w.Header(), index.header)
			http.ServeContent(w, r, openAPIIndex, index.lastModified, bytes.NewReader(index.body.Bytes()))
			return
		}
	}
	d.v3.get().ServeHTTP(w, r)
}

// cachedIndex returns the index, or nil if it cannot be built. The handler reports the error then.
func (d *documentCache) cachedIndex(ctx context.Context) *recordedResponse {
	d.mu.Lock()
	index := d.index
	d.mu.Unlock()
	if index != nil {
		return index
	}
	index = &recordedResponse{header: http.Header{}, lastModified: time.Now()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, openAPIIndex, http.NoBody)
	if err != nil {
		return nil
	}
	if d.v3.get().ServeHTTP(index, r); index.status != http.StatusOK {
		return nil
	}
	// These headers are specific to the recorded response.
	for _, name := range []string{"Content-Length", "Last-Modified", "Accept-Ranges"} {
		index.header.Del(name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index = index
	return index
}

// recordedResponse is a cached HTTP response.
type recordedResponse struct {
	header       http.Header
	status       int
	body         bytes.Buffer
	lastModified time.Time
}

func (r *recordedResponse) Header() http.Header { return r.header }

func (r *recordedResponse) WriteHeader(status int) { r.status = status }

func (r *recordedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }

// expiring is a value that is built on use and dropped when it has not been used for the TTL. It is
// safe for concurrent use.
type expiring[T any] struct {
	build func() T
	ttl   time.Duration // since the last use

	mu     sync.Mutex
	value  T
	built  bool
	expiry *time.Timer
}

// get returns the value and extends its TTL.
func (e *expiring[T]) get() T {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.built {
		e.value, e.built = e.build(), true
		e.expiry = time.AfterFunc(e.ttl, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			var none T
			e.value, e.built = none, false
		})
	}
	e.expiry.Reset(e.ttl)
	return e.value
}

// customDocuments builds the documents of the kinds that CustomResourceDefinitions define or extension API
// servers serve.
type customDocuments interface {
	// Documents returns a hash for each document.
	Documents() map[schema.GroupVersion]string
	OpenAPIV3(of schema.GroupVersion) (*spec3.OpenAPI, error)
	// OpenAPIV2 returns a document with all of these kinds added.
	OpenAPIV2(builtIn *spec.Swagger) (*spec.Swagger, error)
}

// mergedDocuments adds the documents of custom resources to those of the built-in kinds. It builds a
// document on request and keeps it for the TTL.
type mergedDocuments struct {
	builtIn *documentCache
	custom  customDocuments
	ttl     time.Duration

	mu sync.Mutex
	// built holds the documents by path.
	built map[string]*customDocument
}

// customDocument is a document that custom resources are part of.
type customDocument struct {
	hash    string
	handler *expiring[http.Handler]
}

func newMergedDocuments(builtIn *documentCache, custom customDocuments, ttl time.Duration) *mergedDocuments {
	return &mergedDocuments{builtIn: builtIn, custom: custom, ttl: ttl, built: map[string]*customDocument{}}
}

func (m *mergedDocuments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	hashes := m.custom.Documents()
	if len(hashes) == 0 {
		m.builtIn.ServeHTTP(w, r)
		return
	}
	switch r.URL.Path {
	case openAPIIndex:
		m.serveIndex(w, r, hashes)
		return
	case openAPIV2:
		m.document(openAPIV2, hashOf(hashes), m.buildV2).ServeHTTP(w, r)
		return
	}
	for gv, hash := range hashes {
		if r.URL.Path == path.Join(openAPIIndex, documentName(gv)) {
			m.serveV3(w, r, gv, hash)
			return
		}
	}
	m.builtIn.ServeHTTP(w, r)
}

// documentName returns the name of a document in the index.
func documentName(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// serveIndex serves the index of all documents.
func (m *mergedDocuments) serveIndex(w http.ResponseWriter, r *http.Request, hashes map[schema.GroupVersion]string) {
	index := handler3.OpenAPIV3Discovery{}
	builtIn := m.builtIn.cachedIndex(r.Context())
	if builtIn == nil || json.Unmarshal(builtIn.body.Bytes(), &index) != nil {
		m.builtIn.ServeHTTP(w, r) // reports the error
		return
	}
	for gv, hash := range hashes {
		index.Paths[documentName(gv)] = handler3.OpenAPIV3DiscoveryGroupVersion{
			ServerRelativeURL: documentURL(gv, hash)}
	}
	text, err := json.Marshal(index)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", strconv.Quote(strings.Trim(builtIn.header.Get("Etag"), `"`)+hashOf(hashes)))
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, openAPIIndex, time.Time{}, bytes.NewReader(text))
}

func documentURL(gv schema.GroupVersion, hash string) string {
	return (&url.URL{Path: path.Join(openAPIIndex, documentName(gv)),
		RawQuery: url.Values{"hash": {hash}}.Encode()}).String()
}

// hashOf returns a hash of all documents.
func hashOf(hashes map[schema.GroupVersion]string) string {
	parts := make([]string, 0, len(hashes))
	for gv, hash := range hashes {
		parts = append(parts, gv.String()+" "+hash)
	}
	slices.Sort(parts)
	return fmt.Sprintf("%X", sha256.Sum256([]byte(strings.Join(parts, "\n"))))
}

// serveV3 serves the document of a group version. The library's handler compares the hash of the
// request with that of the document's text. The hash of the index is another one, which is known
// without the document.
func (m *mergedDocuments) serveV3(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion, hash string) {
	switch r.URL.Query().Get("hash") {
	case "":
	case hash:
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
		r = r.Clone(r.Context())
		r.URL.RawQuery = ""
	default:
		http.Redirect(w, r, documentURL(gv, hash), http.StatusMovedPermanently)
		return
	}
	m.document(r.URL.Path, hash, func() http.Handler {
		text, err := m.custom.OpenAPIV3(gv)
		if err != nil {
			return failed(err)
		}
		service := handler3.NewOpenAPIService()
		service.UpdateGroupVersion(documentName(gv), text)
		return http.HandlerFunc(service.HandleGroupVersion)
	}).ServeHTTP(w, r)
}

// buildV2 builds the document of OpenAPI v2, which is a single one.
func (m *mergedDocuments) buildV2() http.Handler {
	text, err := m.custom.OpenAPIV2(m.builtIn.v2.get().swagger)
	if err != nil {
		return failed(err)
	}
	out := mux.NewPathRecorderMux("openapi")
	handler.NewOpenAPIService(text).RegisterOpenAPIVersionedService(openAPIV2, out)
	return out
}

func failed(err error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	})
}

// document returns the handler of a document. It is built again if its hash has changed.
func (m *mergedDocuments) document(at, hash string, build func() http.Handler) http.Handler {
	m.mu.Lock()
	known := m.built[at]
	if known == nil || known.hash != hash {
		known = &customDocument{hash, &expiring[http.Handler]{ttl: m.ttl, build: build}}
		m.built[at] = known
	}
	m.mu.Unlock()
	return known.handler.get()
}
