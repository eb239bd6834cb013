package nodeapi

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// checkTimeout limits the duration of one health check. A check that takes longer has failed.
const checkTimeout = 5 * time.Second

// Health contains the checks that the health port serves.
type Health struct {
	Live    HealthChecks // /healthz: the agent works
	Ready   HealthChecks // /readyz: the agent can run pods
	Metrics http.Handler // /metrics; nil: none
}

// HealthChecks are the checks of one endpoint.
type HealthChecks []HealthCheck

// Handler serves the checks as the endpoint with the given name, as described for ServeHealth. The
// path value "check" selects a single check.
func (c HealthChecks) Handler(name string) http.Handler { return checks{name: name, all: c} }

// HealthCheck is one named check. A nil error means success. Check must respect its context and can
// be called concurrently.
type HealthCheck struct {
	Name     string
	Check    func(ctx context.Context) error
	NonFatal bool // a failure is listed, and fails only a request for this check alone
}

// ServeHealth serves /healthz, /readyz and /metrics on ln until ctx ends. It closes ln. /healthz
// and /readyz return "ok" with 200, or 500 and a list of the checks. ?verbose always returns the
// list, ?exclude=NAME skips a check, and a path like /readyz/runtime runs a single check.
func ServeHealth(ctx context.Context, ln net.Listener, h Health) error {
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", h.Live.Handler("healthz"))
	mux.Handle("GET /healthz/{check}", h.Live.Handler("healthz"))
	mux.Handle("GET /readyz", h.Ready.Handler("readyz"))
	mux.Handle("GET /readyz/{check}", h.Ready.Handler("readyz"))
	if h.Metrics != nil {
		mux.Handle("GET /metrics", h.Metrics)
	}
	return ServeUntil(ctx, ln, &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	})
}

// checks serves one list of checks.
type checks struct {
	name string
	all  []HealthCheck
}

func (c checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, excluded := c.all, r.URL.Query()["exclude"]
	if one := r.PathValue("check"); one != "" {
		asked = slices.DeleteFunc(slices.Clone(c.all), func(h HealthCheck) bool { return h.Name != one })
		if len(asked) == 0 {
			http.Error(w, fmt.Sprintf("check %q not found", one), http.StatusNotFound)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	var list strings.Builder
	var bad []string
	for _, h := range asked {
		if slices.Contains(excluded, h.Name) {
			fmt.Fprintf(&list, "[+]%s excluded: ok\n", h.Name)
		} else if err := h.Check(ctx); err != nil && h.NonFatal && r.PathValue("check") == "" {
			fmt.Fprintf(&list, "[!]%s: %v\n", h.Name, err)
		} else if err != nil {
			fmt.Fprintf(&list, "[-]%s failed: %v\n", h.Name, err)
			bad = append(bad, h.Name)
		} else {
			fmt.Fprintf(&list, "[+]%s ok\n", h.Name)
		}
	}
	c.write(w, r.URL.Query().Has("verbose"), list.String(), bad)
}

func (c checks) write(w http.ResponseWriter, verbose bool, list string, bad []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case len(bad) > 0:
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "%s%s check failed: %s\n", list, c.name, strings.Join(bad, ", "))
	case verbose:
		_, _ = fmt.Fprintf(w, "%s%s check passed\n", list, c.name)
	default:
		_, _ = fmt.Fprint(w, "ok")
	}
}
