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

// Options says how a node's API is served.
type Options struct {
	NodeName string
	Handlers Handlers
	// Certificate is asked at every handshake, so that a new one is used at once.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCA has signed the certificates of clients; nil: none are taken.
	ClientCA *DynamicCA
	// Reviews are where tokens and rights are asked for.
	Reviews Reviews
	// AuthorizationMode says who decides what a known user may do.
	AuthorizationMode AuthorizationMode
	// TokenTTL, AllowedTTL and DeniedTTL are how long answers of Reviews are good.
	TokenTTL, AuthorizedTTL, UnauthorizedTTL time.Duration

	MinVersion       uint16        // of TLS; 0: Go's default
	CipherSuites     []uint16      // empty: Go's default
	CurvePreferences []tls.CurveID // empty: Go's default

	// EnableDebuggingHandlers opens what reaches into containers and the host's logs.
	EnableDebuggingHandlers bool
	// StreamIdleTimeout ends a stream on which nothing has moved for so long; 0: never.
	StreamIdleTimeout time.Duration
	Log               *slog.Logger
}

// server is one life of the node's API.
type server struct {
	Options
	h       Handlers
	door    *door
	rates   rates
	leave   context.Context // done: streams end
	streams sync.WaitGroup  // requests that the HTTP server no longer knows
}

// Bounds of connections. Answers have no bound of their own: a log that is
// followed may take for ever.
const (
	headerBound    = 30 * time.Second // handshake and head of a request
	idleBound      = 2 * time.Minute  // of a connection between requests
	bodyBound      = time.Minute      // of what a request brings, until its connection is taken over
	maxHeaderBytes = 64 << 10
)

// Serve answers on ln until ctx ends, then lets short requests under way finish
// and ends streams, and returns nil. It closes ln. Any other end is an error.
func Serve(ctx context.Context, ln net.Listener, o Options) error {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &server{Options: o, h: o.Handlers, leave: ctx}
	s.door = newDoor(o)
	defer s.streams.Wait()
	secure := s.tls()
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(slices.Contains(secure.NextProtos, http2))
	return nodeapi.ServeUntil(ctx, tls.NewListener(ln, secure), &http.Server{
		Protocols:         protocols,
		Handler:           boundBodies(s.routes(), bodyBound),
		TLSConfig:         secure,
		ReadHeaderTimeout: headerBound,
		IdleTimeout:       idleBound,
		MaxHeaderBytes:    maxHeaderBytes,
		// Handshakes that fail are told here: scanners make many of them.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	})
}

// boundBodies cuts off who sends a body too slowly: Go waits for ever, even for the
// rest of one whose request was refused.
func boundBodies(next http.Handler, within time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // both protocols can
		}
		next.ServeHTTP(w, r)
	})
}

const http2 = "h2" // as TLS names it

func (s *server) tls() *tls.Config {
	c := &tls.Config{
		GetCertificate:   s.Certificate,
		MinVersion:       max(s.MinVersion, tls.VersionTLS12),
		CipherSuites:     s.CipherSuites,
		CurvePreferences: s.CurvePreferences,
		NextProtos:       []string{"http/1.1"},
	}
	if s.http2() {
		c.NextProtos = []string{http2, "http/1.1"}
	}
	if s.ClientCA != nil {
		// Judged per request: who has a bad certificate is told so in words.
		c.ClientAuth = tls.RequestClientCert
	}
	return c
}

// http2 reports whether HTTP/2 may be spoken: with TLS 1.2 it wants a cipher suite
// that the configuration may have left out, and Go serves nobody without.
func (s *server) http2() bool {
	return len(s.CipherSuites) == 0 || s.MinVersion >= tls.VersionTLS13 ||
		slices.Contains(s.CipherSuites, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) ||
		slices.Contains(s.CipherSuites, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
}

// route is one endpoint, and what its caller must be allowed to do.
type route struct {
	methods   []string
	path      string
	right     right
	debugging bool // only with Options.Debugging
	have      bool // whether this node has an answer
	serve     http.HandlerFunc
}

var (
	get     = []string{http.MethodGet}
	getPost = []string{http.MethodGet, http.MethodPost}
)

// table lists the endpoints.
func (s *server) table() []route {
	const (
		pod          = "/{namespace}/{pod}"
		container    = pod + "/{container}"
		containerUID = pod + "/{uid}/{container}"
	)
	h := s.h
	return []route{
		{get, "/healthz", toHealth, false, h.Health != nil, through(h.Health)},
		{get, "/healthz/{check}", toHealth, false, h.Health != nil, through(h.Health)},
		{get, "/pods", toPods, false, h.Pods != nil, s.pods},
		{get, "/runningpods/{$}", toPods, true, h.RunningPods != nil, s.running},
		{get, "/runningpods", toPods, true, h.RunningPods != nil, s.running},
		{get, "/configz", toConfig, true, h.Config != nil, s.configz},
		{get, "/metrics", toMetrics, false, h.Metrics != nil, through(h.Metrics)},
		{get, "/metrics/probes", toMetrics, false, h.Probes != nil, through(h.Probes)},
		{get, "/metrics/resource", toMetrics, false, h.Stats != nil, s.resource},
		{get, "/metrics/cadvisor", toMetrics, false, h.Stats != nil, s.cadvisor},
		{get, "/stats/summary", toStats, false, h.Stats != nil, s.summary},
		{get, "/logs/{path...}", toLogs, true, h.SystemLogDir != "", s.hostLogs},
		{get, "/containerLogs" + container, toProxy, true, h.Logs != nil, s.logs},
		{getPost, "/exec" + container, toEnter, true, h.Exec != nil, s.exec},
		{getPost, "/exec" + containerUID, toEnter, true, h.Exec != nil, s.exec},
		{getPost, "/attach" + container, toEnter, true, h.Attach != nil, s.attach},
		{getPost, "/attach" + containerUID, toEnter, true, h.Attach != nil, s.attach},
		{getPost, "/run" + container, toEnter, true, h.Exec != nil, s.run},
		{getPost, "/run" + containerUID, toEnter, true, h.Exec != nil, s.run},
		{getPost, "/portForward" + pod, toEnter, true, h.DialPort != nil, s.portForward},
		{getPost, "/portForward" + pod + "/{uid}", toEnter, true, h.DialPort != nil, s.portForward},
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
			mux.Handle(m+" "+r.path, s.door.guard(r.right, r.serve))
		}
	}
	mux.Handle("/", s.door.guard(toProxy, http.NotFound))
	return mux
}

func through(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }
}

// streaming returns a context for a stream, which Serve waits for: it ends with
// the request, and also when the server must end.
func (s *server) streaming(r *http.Request) (context.Context, func()) {
	s.streams.Add(1) // the HTTP server no longer waits for a connection that was taken over
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.leave, cancel)
	return ctx, func() { stop(); cancel(); s.streams.Done() }
}

func podOf(r *http.Request) PodRef {
	return PodRef{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod"), UID: r.PathValue("uid")}
}
