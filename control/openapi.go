package control

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"

	"berth/control/scheme"
	"berth/control/scheme/openapi"
)

const (
	openAPIPrefix = "/openapi/"
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
// serve the same kinds and share the documents, with the TTL of the first one.
func serveOpenAPI(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config, ttl time.Duration) {
	shared, _ := documentCaches.LoadOrStore(
		config.OpenAPIConfig.Info.Version,
		&documentCache{ttl: ttl, build: func() http.Handler {
			m := mux.NewPathRecorderMux("openapi")
			routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(server.Handler.GoRestfulContainer, m)
			routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(server.Handler.GoRestfulContainer, m)
			return m
		}},
	)
	//nolint:errcheck // documentCaches holds no other type
	server.Handler.NonGoRestfulMux.HandlePrefix(openAPIPrefix, shared.(http.Handler))
}

// documentCaches maps server versions to *documentCache.
var documentCaches sync.Map

// documentCache serves the paths below /openapi/. The documents take 30 MiB and some tenths of a
// second to build. They are built on request and dropped when they have not been requested for the
// TTL. The index stays cached.
type documentCache struct {
	build func() http.Handler
	ttl   time.Duration // since the last request

	mu      sync.Mutex
	handler http.Handler // nil: not built or expired
	expiry  *time.Timer
	index   *recordedResponse // nil: never requested
}

func (d *documentCache) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == openAPIIndex {
		if index := d.cachedIndex(r.Context()); index != nil {
			maps.Copy(w.Header(), index.header)
			http.ServeContent(w, r, openAPIIndex, index.lastModified, bytes.NewReader(index.body.Bytes()))
			return
		}
	}
	d.getHandler().ServeHTTP(w, r)
}

// getHandler returns the handler of all documents and extends its TTL.
func (d *documentCache) getHandler() http.Handler {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handler == nil {
		d.handler = d.build()
		d.expiry = time.AfterFunc(d.ttl, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.handler = nil
		})
	}
	d.expiry.Reset(d.ttl)
	return d.handler
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
	if d.getHandler().ServeHTTP(index, r); index.status != http.StatusOK {
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
