package aggregation

import (
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	proxyutil "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	"k8s.io/streaming/pkg/httpstream"
)

// backend forwards requests to the extension API server of one APIService. It is immutable.
type backend struct {
	service   apiregistrationv1.ServiceReference
	services  webhook.ServiceResolver
	available bool
	// transport authenticates the server. It is nil if err is set.
	transport http.RoundTripper
	err       error
}

func (s *Server) newBackend(in *apiregistrationv1.APIService) *backend {
	b := &backend{service: *in.Spec.Service, services: s.Services,
		available: helper.IsAPIServiceConditionTrue(in, apiregistrationv1.Available)}
	cert, key := s.ProxyCertificate.CurrentCertKeyContent()
	b.transport, b.err = transport.New(remote.BuildTransportConfig(s.Dial, cert, key, in))
	if b.err != nil {
		s.Log.Error("invalid TLS configuration of an APIService", "apiService", in.Name, "err", b.err)
	}
	return b
}

func (b *backend) withAvailability(available bool) *backend {
	out := *b
	out.available = available
	return &out
}

// close closes idle connections.
func (b *backend) close() {
	if b.transport != nil {
		utilnet.CloseIdleConnectionsFor(b.transport)
	}
}

// ServeHTTP forwards an authorized request. The extension API server gets the user in headers, and none of the
// user's credentials.
func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, ok := request.UserFrom(r.Context())
	switch {
	case !b.available:
		fail(w, r, "service unavailable", http.StatusServiceUnavailable)
		return
	case b.err != nil:
		fail(w, r, b.err.Error(), http.StatusInternalServerError)
		return
	case !ok:
		fail(w, r, "missing user", http.StatusInternalServerError)
		return
	}
	endpoint, err := b.services.ResolveEndpoint(b.service.Namespace, b.service.Name, *b.service.Port)
	if err != nil {
		fail(w, r, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	location := &url.URL{Scheme: "https", Host: endpoint.Host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
	out, cancel := proxyutil.NewRequestForProxy(location, r)
	defer cancel()
	upgrade := httpstream.IsUpgradeRequest(r)
	if upgrade {
		// An upgrade uses the TLS configuration of the transport only.
		transport.SetAuthProxyHeaders(out, who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra())
	}
	handler := proxy.NewUpgradeAwareHandler(location, transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(),
		who.GetGroups(), who.GetExtra(), b.transport), true, upgrade, responder{w})
	handler.RejectForwardingRedirects = true
	flowcontrol.RequestDelegated(r.Context())
	handler.ServeHTTP(w, out)
}

// fail rejects a request.
func fail(w http.ResponseWriter, r *http.Request, message string, code int) {
	http.Error(w, message, code)
	if info, ok := request.RequestInfoFrom(r.Context()); ok {
		metrics.RecordRequestTermination(r, info, "aggregator", code)
	}
}

// responder writes the errors of the proxy.
type responder struct{ w http.ResponseWriter }

// Object writes an object.
func (r responder) Object(status int, obj runtime.Object) {
	responsewriters.WriteRawJSON(status, obj, r.w)
}

// Error writes an error.
func (r responder) Error(_ http.ResponseWriter, _ *http.Request, err error) {
	http.Error(r.w, err.Error(), http.StatusServiceUnavailable)
}

// requestTimeout limits the server's own requests to an extension API server, as upstream.
const requestTimeout = 5 * time.Second

// response is the response to get.
type response struct {
	code   int
	header http.Header
	body   []byte
}

// get requests a path as the aggregator, whom an extension API server allows everything. It ignores whether the
// server is available.
func (b *backend) get(path, accept string) (response, error) {
	r, err := http.NewRequest(http.MethodGet, path, http.NoBody) //nolint:noctx // the handler limits the time
	if err != nil {
		return response{}, err
	}
	r.Header.Set("Accept", accept)
	ctx := request.WithUser(r.Context(), &user.DefaultInfo{
		Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}})
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Path: path, Verb: "get"})
	out := responsewriter.NewInMemoryResponseWriter()
	limited := http.TimeoutHandler(b.withAvailability(true), requestTimeout, "request timed out")
	limited.ServeHTTP(out, r.WithContext(ctx))
	return response{out.RespCode(), out.Header(), out.Data()}, nil
}
