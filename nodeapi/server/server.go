package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"berth/nodeapi"
)

// Options configures the server.
type Options struct {
	NodeName string
	Handlers Handlers
	// Certificate is called for every handshake, so that a renewed certificate is used
	// immediately.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCA verifies client certificates; nil: client certificates are not accepted.
	ClientCA *DynamicCA
	// Reviews authenticates tokens and authorizes users.
	Reviews Reviews
	// AuthorizationMode selects how authenticated users are authorized.
	AuthorizationMode AuthorizationMode
	// TokenTTL, AuthorizedTTL and UnauthorizedTTL are the cache TTLs of review results.
	TokenTTL, AuthorizedTTL, UnauthorizedTTL time.Duration

	MinVersion       uint16        // minimum TLS version; 0: Go's default
	CipherSuites     []uint16      // of TLS 1.2; empty: those with forward secrecy and authenticated encryption
	CurvePreferences []tls.CurveID // empty: Go's default

	// EnableDebuggingHandlers enables access to containers and to the host's logs.
	EnableDebuggingHandlers bool
	// EnableProfiling enables /debug/pprof/, and EnableDebugFlags /debug/flags/v. Both also require
	// EnableDebuggingHandlers.
	EnableProfiling, EnableDebugFlags bool
	// StreamIdleTimeout closes a stream without any data transfer for this time; 0: never.
	StreamIdleTimeout time.Duration
	Log               *slog.Logger
}

// server is one instance of the API server of the node.
type server struct {
	Options
	h       Handlers
	auth    *auth
	rates   cpuRates
	done    context.Context // when done, streams end
	streams sync.WaitGroup  // hijacked requests, which the HTTP server does not track
}

// Timeouts of connections. Responses have no timeout, because a log can be followed for an
// unlimited time.
const (
	headerTimeout  = 30 * time.Second // TLS handshake and request header
	idleTimeout    = 2 * time.Minute  // idle connections
	bodyTimeout    = time.Minute      // request bodies, until the connection is hijacked
	maxHeaderBytes = 64 << 10
)

// Serve serves on ln until ctx ends, waits for short active requests, ends streams, and returns
// nil. It closes ln. Any other end is an error.
func Serve(ctx context.Context, ln net.Listener, o Options) error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &server{Options: o, h: o.Handlers, done: ctx}
	s.auth = newAuth(o)
	defer s.streams.Wait()
	secure := s.tls()
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(slices.Contains(secure.NextProtos, http2))
	return nodeapi.ServeUntil(ctx, tls.NewListener(ln, secure), &http.Server{
		Protocols:         protocols,
		Handler:           boundBodies(s.routes(), bodyTimeout),
		TLSConfig:         secure,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		// Failed handshakes are logged here. Port scanners cause many of them.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	})
}

// boundBodies limits the time to send a request body. Without it the server would wait without
// limit, even for the body of a rejected request.
func boundBodies(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // supported by both protocols
		}
		next.ServeHTTP(w, r)
	})
}

const http2 = "h2" // name in TLS

func (s *server) tls() *tls.Config {
	c := &tls.Config{
		GetCertificate:   s.Certificate,
		MinVersion:       max(s.MinVersion, tls.VersionTLS12),
		CipherSuites:     s.CipherSuites,
		CurvePreferences: s.CurvePreferences,
		NextProtos:       []string{"http/1.1"},
	}
	if len(c.CipherSuites) == 0 {
		c.CipherSuites = StrongCipherSuites()
	}
	if s.http2() {
		c.NextProtos = []string{http2, "http/1.1"}
	}
	if s.ClientCA != nil {
		// Verified per request, so that a client with an invalid certificate gets a
		// readable error.
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}

// StrongCipherSuites returns the suites of TLS 1.2 with forward secrecy and authenticated encryption. Go's default also
// has suites in CBC mode.
func StrongCipherSuites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}

// http2 reports whether HTTP/2 can be enabled. With TLS 1.2 it requires a cipher suite that the
// configuration may not include, and then Go would not serve at all.
func (s *server) http2() bool {
	return len(s.CipherSuites) == 0 || s.MinVersion >= tls.VersionTLS13 ||
		slices.Contains(s.CipherSuites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) ||
		slices.Contains(s.CipherSuites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
}

// route is one endpoint with the permission that it requires.
type route struct {
	methods    []string
	path       string
	permission permission
	debugging  bool // requires Options.EnableDebuggingHandlers
	have       bool // whether the agent implements it
	serve      http.HandlerFunc
}

var (
	get       = []string{http.MethodGet}
	put       = []string{http.MethodPut}
	post      = []string{http.MethodPost}
	putDelete = []string{http.MethodPut, http.MethodDelete}
	getPost   = []string{http.MethodGet, http.MethodPost}
)

// table is the list of endpoints.
func (s *server) table() []route {
	const (
		pod          = "/{namespace}/{pod}"
		container    = pod + "/{container}"
		containerUID = pod + "/{uid}/{container}"
	)
	h, profiling, flags := s.h, s.profiling, s.verbosity
	if !s.EnableProfiling {
		profiling = disabled("profiling")
	}
	if !s.EnableDebugFlags {
		flags = disabled("flags")
	}
	return []route{
		{get, "/healthz", permHealth, false, h.Health != nil, through(h.Health)},
		{get, "/healthz/{check}", permHealth, false, h.Health != nil, through(h.Health)},
		{get, "/pods", permPods, false, h.Pods != nil, s.pods},
		{get, "/runningpods/{$}", permPods, true, h.RunningPods != nil, s.running},
		{get, "/runningpods", permPods, true, h.RunningPods != nil, s.running},
		{get, "/configz", permConfig, true, h.Config != nil, s.configz},
		{get, "/metrics", permMetrics, false, h.Metrics != nil, through(h.Metrics)},
		{get, "/metrics/probes", permMetrics, false, h.Probes != nil, through(h.Probes)},
		{get, "/metrics/resource", permMetrics, false, h.Stats != nil, s.resource},
		{get, "/metrics/cadvisor", permMetrics, false, h.Stats != nil, s.cadvisor},
		{get, "/stats/summary", permStats, false, h.Stats != nil, s.summary},
		{get, "/logs/{path...}", permLogs, true, h.SystemLogDir != "", s.nodeLogs},
		{get, "/localvolumes", permProxy, false, h.LocalVolumes != nil, through(h.LocalVolumes)},
		{putDelete, "/localvolumes/{name}", permProxy, false, h.LocalVolumes != nil, through(h.LocalVolumes)},
		{get, "/podWhy" + pod, permProxy, true, h.Why != nil, podView(h.Why)},
		{get, "/podTimeline" + pod, permProxy, true, h.Timeline != nil, podView(h.Timeline)},
		{post, "/checkpoint" + container, permCheckpoint, false, h.Checkpoint != nil, s.checkpoint},
		{get, "/checkpoint/", permCheckpoint, false, true, http.NotFound},
		{getPost, "/debug/pprof/{profile...}", permProxy, true, true, profiling},
		{put, "/debug/flags/v", permProxy, true, h.SetVerbosity != nil, flags},
		{get, "/containerLogs" + container, permProxy, true, h.Logs != nil, s.logs},
		{getPost, "/exec" + container, permEnter, true, h.Exec != nil, s.exec},
		{getPost, "/exec" + containerUID, permEnter, true, h.Exec != nil, s.exec},
		{getPost, "/attach" + container, permEnter, true, h.Attach != nil, s.attach},
		{getPost, "/attach" + containerUID, permEnter, true, h.Attach != nil, s.attach},
		{getPost, "/run" + container, permEnter, true, h.Exec != nil, s.run},
		{getPost, "/run" + containerUID, permEnter, true, h.Exec != nil, s.run},
		{getPost, "/portForward" + pod, permEnter, true, h.DialPort != nil, s.portForward},
		{getPost, "/portForward" + pod + "/{uid}", permEnter, true, h.DialPort != nil, s.portForward},
	}
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.table() {
		switch {
		case !r.have:
			continue
		case r.debugging && !s.EnableDebuggingHandlers:
			r.serve = func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "Debug endpoints are disabled.", http.StatusMethodNotAllowed)
			}
		}
		for _, m := range r.methods {
			mux.Handle(m+" "+r.path, s.auth.require(r.permission, r.serve))
		}
	}
	mux.Handle("/", s.auth.require(permProxy, http.NotFound))
	return mux
}

func through(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }
}

// streaming returns a context for a stream, which Serve waits for. It ends with the request and
// with the server.
func (s *server) streaming(r *http.Request) (context.Context, func()) {
	s.streams.Add(1) // the HTTP server does not wait for hijacked connections
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.done, cancel)
	return ctx, func() { stop(); cancel(); s.streams.Done() }
}

func podOf(r *http.Request) PodRef {
	return PodRef{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: r.PathValue("uid")}
}
