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
	// unasked is how long the documents are kept after somebody has asked for them:
	// one run of a client, which asks for several.
	unasked = 5 * time.Second
)

// addOpenAPI describes the API for the library, which needs that to merge what
// clients apply. The documents themselves are left to serveOpenAPI.
func addOpenAPI(config *genericapiserver.Config) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, scheme.Names())
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, scheme.Names())
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "berth-control", "berth-control"
	config.SkipOpenAPIInstallation = true
}

// serveOpenAPI serves /openapi/v2 and /openapi/v3. All servers of a process and
// version serve the same kinds, and share the documents.
func serveOpenAPI(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config) {
	shared, _ := allDocuments.LoadOrStore(config.OpenAPIConfig.Info.Version, &documents{kept: unasked, build: func() http.Handler {
		m := mux.NewPathRecorderMux("openapi")
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(server.Handler.GoRestfulContainer, m)
		routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(server.Handler.GoRestfulContainer, m)
		return m
	}})
	server.Handler.NonGoRestfulMux.HandlePrefix(openAPIPrefix, shared.(http.Handler)) //nolint:errcheck // allDocuments has nothing else
}

// allDocuments are *documents by version of the server.
var allDocuments sync.Map

// documents are what is under /openapi/. They take 30 MiB and some tenths of a
// second, so they are made when somebody asks, and forgotten soon after. Of them the
// index is kept.
type documents struct {
	build func() http.Handler
	kept  time.Duration // after the last request

	mu     sync.Mutex
	whole  http.Handler // nil: nobody has asked for a while
	forget *time.Timer
	index  *recorded // nil: nobody has ever asked
}

func (d *documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == openAPIIndex {
		if index := d.listed(r.Context()); index != nil {
			maps.Copy(w.Header(), index.header)
			http.ServeContent(w, r, openAPIIndex, index.since, bytes.NewReader(index.body.Bytes()))
			return
		}
	}
	d.made().ServeHTTP(w, r)
}

// made is the handler of all documents.
func (d *documents) made() http.Handler {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.whole == nil {
		d.whole = d.build()
		d.forget = time.AfterFunc(d.kept, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.whole = nil
		})
	}
	d.forget.Reset(d.kept)
	return d.whole
}

// listed is the index, or nil when it cannot be made: whoever asks is told why by
// the handler itself.
func (d *documents) listed(ctx context.Context) *recorded {
	d.mu.Lock()
	index := d.index
	d.mu.Unlock()
	if index != nil {
		return index
	}
	index = &recorded{header: http.Header{}, since: time.Now()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, openAPIIndex, http.NoBody)
	if err != nil {
		return nil
	}
	if d.made().ServeHTTP(index, r); index.status != http.StatusOK {
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

// recorded is an answer that is kept.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
	since  time.Time
}

func (r *recorded) Header() http.Header { return r.header }

func (r *recorded) WriteHeader(status int) { r.status = status }

func (r *recorded) Write(b []byte) (int, error) { return r.body.Write(b) }
