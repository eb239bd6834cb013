package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"
)

// endGrace limits how long Serve waits for active requests on shutdown.
const endGrace = 5 * time.Second

// server is one instance of the local socket server.
type server struct {
	h     Handlers
	done  context.Context // when done, streams end
	owner uint32          // the user besides root that has access

	streams sync.WaitGroup // hijacked connections, which the HTTP server does not track
}

// Serve serves on ln (see Listen) until ctx ends, waits for the active requests, and returns nil.
// It closes ln. Any other end is an error.
func Serve(ctx context.Context, ln net.Listener, h Handlers) error {
	s := &server{h: h, done: ctx, owner: ownUID()}
	defer s.streams.Wait()
	return ServeUntil(ctx, ln, &http.Server{
		Handler:           s.authorizePeer(s.routes()),
		ConnContext:       withPeer,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	})
}

// ServeUntil runs srv on ln until ctx ends and then shuts it down gracefully. Requests have their
// own context: a short request can finish after ctx has ended. One that takes longer is closed.
func ServeUntil(ctx context.Context, ln net.Listener, srv *http.Server) error {
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		slog.Default().Warn("active requests closed at shutdown", "address", ln.Addr().String())
		err = srv.Close()
	}
	if err != nil {
		err = fmt.Errorf("shut down %s: %w", ln.Addr(), err)
	}
	<-ended //nolint:errcheck // always http.ErrServerClosed
	return err
}

// route is one endpoint. have is false if the agent does not implement it.
type route struct {
	pattern string
	have    bool
	serve   http.HandlerFunc
}

// table returns all endpoints. docs/reference/node-api.md describes them.
func (s *server) table() []route {
	return []route{
		{"GET /v1/version", s.h.Version != nil, s.version},
		{"GET /v1/node", s.h.Node != nil, s.node},
		{"GET /v1/check", s.h.Check != nil, s.check},
		{"GET /v1/cis", s.h.CIS != nil, s.cis},
		{"GET /v1/eviction", s.h.Eviction != nil, s.eviction},
		{"GET /v1/images", s.h.Images != nil, s.images},
		{"GET /v1/services", s.h.Services != nil, s.services},
		{"GET /v1/dns", s.h.DNS != nil, s.dns},
		{"POST /v1/drain", s.h.Drain != nil, s.drain},
		{"POST /v1/plan", s.h.Plan != nil, s.plan},
		{"GET /v1/workloads", s.h.Workloads != nil, s.workloads},
		{"POST /v1/workloads", s.h.EditWorkload != nil, s.editWorkload},
		{"GET " + workloadPattern + "/describe", s.h.DescribeWorkload != nil, s.describeWorkload},
		{"GET " + workloadPattern + "/why", s.h.WhyWorkload != nil, s.whyWorkload},
		{"GET /v1/events", s.h.Events != nil, s.events},
		{"GET /v1/pods", s.h.Pods != nil, s.pods},
		{"GET /v1/top", s.h.Top != nil, s.top},
		{"GET /v1/watch/pods", s.h.WatchPods != nil, s.watchPods},
		{"GET /v1/watch/events", s.h.WatchEvents != nil, s.watchEvents},
		{"GET " + podPattern, s.h.Pods != nil, s.pod},
		{"GET " + podPattern + "/describe", s.h.Describe != nil, s.describe},
		{"GET " + podPattern + "/why", s.h.Why != nil, s.why},
		{"GET " + podPattern + "/timeline", s.h.Timeline != nil, s.timeline},
		{"GET " + podPattern + "/probes", s.h.Probes != nil, s.probes},
		{"GET " + podPattern + "/log", s.h.Logs != nil, s.logs},
		{"POST " + podPattern + "/exec", s.h.ExecURL != nil, s.exec},
		{"POST " + podPattern + "/restart", s.h.Restart != nil, s.restart},
		{"POST " + podPattern + "/ephemeralcontainers", s.h.Debug != nil, s.debug},
		{"GET /metrics", s.h.Metrics != nil, func(w http.ResponseWriter, r *http.Request) {
			s.h.Metrics.ServeHTTP(w, r)
		}},
		{"POST " + podPattern + "/attach", s.h.Attach != nil, s.attach},
		{"POST " + podPattern + "/portforward", s.h.DialPort != nil, s.forward},
		{"GET /debug/pprof/", true, pprof.Index},
		{"GET /debug/pprof/profile", true, pprof.Profile},
		{"GET /debug/pprof/trace", true, pprof.Trace},
		{"/", true, unknownPath},
	}
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.table() {
		if !r.have {
			r.serve = notImplemented
		}
		mux.HandleFunc(r.pattern, r.serve)
	}
	return mux
}

// streaming returns a context for a stream. It ends with the request and with the server.
func (s *server) streaming(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(s.done, cancel)
	return ctx, func() { stop(); cancel() }
}
