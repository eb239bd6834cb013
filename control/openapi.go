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
	// openAPIIndex lists the documents with their hashes. kubectl asks for it each
	// time, and then mostly has the documents on its own disk.
	openAPIIndex = "/openapi/v3"
	// documentTTL is how long the documents are kept after somebody has asked for them:
	// one run of a client, which asks for several.
	documentTTL = 5 * time.Second
)

// addOpenAPI describes the API for the library, which needs that to merge what
// clients apply. The documents themselves are left to serveOpenAPI.
func addOpenAPI(config *genericapiserver.Config) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, scheme.DefinitionNamer())
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, scheme.DefinitionNamer())
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "berth-control", "berth-control"
	config.SkipOpenAPIInstallation = true
}

// serveOpenAPI serves /openapi/v2 and /openapi/v3. All servers of a process and
// version serve the same kinds, and share the documents.
func serveOpenAPI(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config) {
	shared, _ := documentCaches.LoadOrStore(config.OpenAPIConfig.Info.Version, &documentCache{ttl: documentTTL, build: func() http.Handler {
		m := mux.NewPathRecorderMux("openapi")
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(server.Handler.GoRestfulContainer, m)
		routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(server.Handler.GoRestfulContainer, m)
		return m
	}})
	server.Handler.NonGoRestfulMux.HandlePrefix(openAPIPrefix, shared.(http.Handler)) //nolint:errcheck // allDocuments has nothing else
}

// documentCaches are *documents by version of the server.
var documentCaches sync.Map

// documentCache are what is under /openapi/. They take 30 MiB and some tenths of a
// second, so they are made when somebody asks, and forgotten soon after. Of them the
// index is kept.
type documentCache struct {
	build func() http.Handler
	ttl   time.Duration // after the last request

	mu      sync.Mutex
	handler http.Handler // nil: nobody has asked for a while
	expiry  *time.Timer
	index   *recordedResponse // nil: nobody has ever asked
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

// getHandler is the handler of all documents.
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

// cachedIndex is the index, or nil when it cannot be made: whoever asks is told why by
// the handler itself.
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
	for _, name := range []string{"Content-Length", "Last-Modified", "Accept-Ranges"} { // of that answer alone
		index.header.Del(name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.index = index
	return index
}

// recordedResponse is an answer that is kept.
type recordedResponse struct {
	header       http.Header
	status       int
	body         bytes.Buffer
	lastModified time.Time
}

func (r *recordedResponse) Header() http.Header { return r.header }

func (r *recordedResponse) WriteHeader(status int) { r.status = status }

func (r *recordedResponse) Write(b []byte) (int, error) { return r.body.Write(b) }
