package aggregation

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const swaggerOfExtension = `{"swagger": "2.0", "info": {"title": "wardle", "version": "v1"}, "paths": {
"/apis/example.com/v1/flunders": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Flunder"}}}}},
"/apis/example.com/v2/others": {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Other"}}}}}},
"definitions": {"Flunder": {"type": "object", "description": "A flunder."}, "Other": {"type": "object"}}}`

// TestOpenAPIOfServers merges the documents of a server with OpenAPI v2 only. The v3 document of its version is
// converted, and a server without documents is left out.
func TestOpenAPIOfServers(t *testing.T) {
	t.Parallel()
	withV2 := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != openAPIV2Path || r.Header.Get("X-Remote-User") != "system:kube-aggregator" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Etag", `"ABC"`)
		_, _ = io.WriteString(w, swaggerOfExtension)
	}))
	defer withV2.Close()
	without := httptest.NewTLSServer(http.NotFoundHandler())
	defer without.Close()
	s := &Server{Config: Config{Log: slog.New(slog.DiscardHandler)}}
	backendOf := func(server *httptest.Server) *backend {
		return &backend{service: *remoteAPIService("example.com", "v1", 1).Spec.Service,
			services: resolver{server.Listener.Addr().String()}, transport: server.Client().Transport}
	}
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	other := schema.GroupVersion{Group: "none", Version: "v1"}
	s.backends.Store(&map[schema.GroupVersion]*backend{gv: backendOf(withV2), other: backendOf(without)})
	s.discovered = newDiscovered(resourceManager{published: map[string]apidiscoveryv2.DiscoveryFreshness{}},
		s.documentHash, func() {})
	for _, group := range []string{gv.Group, other.Group} {
		s.discovered.AddGroupVersion(group, apidiscoveryv2.APIVersionDiscovery{Version: "v1",
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent})
	}
	if got := s.Documents(); len(got) != 1 || got[gv] != "v2-ABC" {
		t.Errorf("documents: got %v, want one of %s with the hash v2-ABC", got, gv)
	}
	v3, err := s.OpenAPIV3(gv)
	if err != nil {
		t.Fatal(err)
	}
	if v3.Paths.Paths["/apis/example.com/v1/flunders"] == nil || len(v3.Paths.Paths) != 1 ||
		v3.Components.Schemas["Flunder"] == nil {
		t.Errorf("converted document: got %v", v3)
	}
	if _, err := s.OpenAPIV3(schema.GroupVersion{Group: "none", Version: "v2"}); err == nil ||
		!strings.Contains(err.Error(), "none/v2") {
		t.Errorf("document of an unknown group version: got error %v", err)
	}
	static := &spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Paths:       &spec.Paths{Paths: map[string]spec.PathItem{"/api/v1/pods": {}}},
		Definitions: spec.Definitions{"Pod": {}}}}
	v2, err := s.OpenAPIV2(static)
	if err != nil {
		t.Fatal(err)
	}
	if len(v2.Paths.Paths) != 2 || len(v2.Definitions) != 2 {
		t.Errorf("merged document: got paths %v and definitions %v", v2.Paths.Paths, v2.Definitions)
	}
	if len(static.Paths.Paths) != 1 || len(static.Definitions) != 1 {
		t.Error("the document of the built-in kinds was changed")
	}
}
