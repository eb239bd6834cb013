package control

import (
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"

	"berth/control/scheme"
	"berth/control/scheme/openapi"
)

// addOpenAPI describes the API for the library, which needs that to merge what
// clients apply. The documents themselves are left to serveOpenAPI.
func addOpenAPI(config *genericapiserver.Config) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, scheme.Names())
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, scheme.Names())
	config.OpenAPIConfig.Info.Title, config.OpenAPIV3Config.Info.Title = "berth-control", "berth-control"
	config.SkipOpenAPIInstallation = true
}

// serveOpenAPI serves /openapi/v2 and /openapi/v3. They are made when somebody
// asks for the first time: they take 15 MiB and a tenth of a second. All servers
// of a process and version serve the same kinds, and share what the first has made.
func serveOpenAPI(server *genericapiserver.GenericAPIServer, config *genericapiserver.Config) {
	made, _ := documents.LoadOrStore(config.OpenAPIConfig.Info.Version, sync.OnceValue(func() http.Handler {
		m := mux.NewPathRecorderMux("openapi")
		routes.OpenAPI{Config: config.OpenAPIConfig}.InstallV2(server.Handler.GoRestfulContainer, m)
		routes.OpenAPI{V3Config: config.OpenAPIV3Config}.InstallV3(server.Handler.GoRestfulContainer, m)
		return m
	}))
	server.Handler.NonGoRestfulMux.HandlePrefix("/openapi/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		made.(func() http.Handler)().ServeHTTP(w, r) //nolint:errcheck // documents has nothing else
	}))
}

// documents are functions that make the handler of /openapi/, by version of the
// server.
var documents sync.Map
