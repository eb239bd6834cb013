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

// checkTime bounds one health check: an answer that comes later is a failure.
const checkTime = 5 * time.Second

// Health is what the health port answers from.
type Health struct {
	Live    HealthChecks // /healthz: whether the agent itself works
	Ready   HealthChecks // /readyz: whether it can run pods now
	Metrics http.Handler // /metrics; nil: none
}

// HealthChecks are the questions of one endpoint.
type HealthChecks []HealthCheck

// Handler answers them under the name of their endpoint, as ServeHealth says. A
// path value "check" asks for one of them.
func (c HealthChecks) Handler(name string) http.Handler { return checks{name: name, all: c} }

// HealthCheck is one named question; a nil error is the good answer. Check must
// mind its context and may be called from several goroutines at once.
type HealthCheck struct {
	Name     string
	Check    func(ctx context.Context) error
	NonFatal bool // a bad answer is shown in the list and fails only who asks for this check alone
}

// ServeHealth answers /healthz, /readyz and /metrics on ln until ctx ends. It
// closes ln. /healthz and /readyz answer "ok" with 200, or 500 and a list of the
// checks; ?verbose shows the list in any case, ?exclude=NAME leaves a check out,
// and a check can be asked alone by its name as in /readyz/runtime.
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

// checks answers for one list of checks.
type checks struct {
	name string
	all  []HealthCheck
}

func (c checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, excluded := c.all, r.URL.Query()["exclude"]
	if one := r.PathValue("check"); one != "" {
		asked = slices.DeleteFunc(slices.Clone(c.all), func(h HealthCheck) bool { return h.Name != one })
		if len(asked) == 0 {
			http.Error(w, fmt.Sprintf("there is no check %q", one), http.StatusNotFound)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), checkTime)
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
