package ui

import (
	"context"
	"crypto/cipher"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	assets "berth/ui"
)

// Prefix is the path of the page.
const Prefix = "/ui/"

// Header is required in all requests except those for assets. A page of another origin cannot send it, because the
// server answers no CORS preflight request. Its value is the secret of the session. Any value is valid in requests that
// do not use a session.
const Header = "X-Berth-UI"

// Options configures the handler.
type Options struct {
	// API is the handler chain of the API. Its authenticator must be the one that WithSessionUser returns.
	API http.Handler
	// Key is the secret from which the key of cookies is derived. It must have at least 32 bytes.
	Key []byte
	// Log is the log of links; nil: none.
	Log *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// handler serves the paths below Prefix.
type handler struct {
	Options
	files   map[string]asset
	cookies cipher.AEAD

	mu    sync.Mutex
	links map[linkID]link
}

// New returns a handler that serves the page and passes all other requests to the API. It panics if the embedded
// assets are not valid or the platform has no AES, which a test rules out.
func New(o Options) http.Handler {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	files, err := readAssets(assets.Files)
	if err != nil {
		panic(err)
	}
	cookies, err := newCipher(o.Key)
	if err != nil {
		panic(err)
	}
	return &handler{Options: o, files: files, cookies: cookies, links: map[linkID]link{}}
}

// pagePolicy allows what the page consists of, and nothing of other origins.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
	"trusted-types 'none'"

// dataPolicy is for responses that are not part of the page. Browsers run no scripts in them.
const dataPolicy = "default-src 'none'; frame-ancestors 'none'; sandbox"

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, Prefix)
	if r.URL.Path == strings.TrimSuffix(Prefix, "/") {
		// A relative location is valid behind any path prefix. http.Redirect would make it absolute.
		w.Header().Set("Location", "."+Prefix)
		w.WriteHeader(http.StatusMovedPermanently)
		return
	}
	if !ok {
		h.API.ServeHTTP(w, r)
		return
	}
	setSecurityHeaders(w.Header())
	switch first, _, _ := strings.Cut(path, "/"); first {
	case "api", "session", "links":
		w.Header().Set("Content-Security-Policy", dataPolicy)
		if !fromPage(r) {
			writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden,
				"the request has no header "+Header+" or comes from another site")
			return
		}
		h.serveData(w, r, first)
	default:
		w.Header().Set("Content-Security-Policy", pagePolicy)
		h.serveAsset(w, r, path)
	}
}

func (h *handler) serveData(w http.ResponseWriter, r *http.Request, first string) {
	switch {
	case first == "api":
		h.serveAPI(w, r)
	case r.URL.Path == Prefix+"session" && r.Method == http.MethodGet:
		h.getSession(w, r)
	case r.URL.Path == Prefix+"session" && r.Method == http.MethodPost:
		h.createSession(w, r)
	case r.URL.Path == Prefix+"session" && r.Method == http.MethodDelete:
		h.deleteSession(w)
	case r.URL.Path == Prefix+"links" && r.Method == http.MethodPost:
		h.createLink(w, r)
	default:
		writeStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, "unknown path or method")
	}
}

func setSecurityHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// fromPage reports whether a request can come from the page itself or from a program, but not from a page of another
// origin.
func fromPage(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return r.Header.Get(Header) != "" && (site == "" || site == "same-origin")
}

// forbiddenSubresources would give a session access to processes and networks of pods and nodes. The page does not use
// them.
var forbiddenSubresources = sets.New("exec", "attach", "portforward", "proxy")

// requestInfo parses paths as the API does.
var requestInfo = apirequest.RequestInfoFactory{
	APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
}

// forbidden reports whether a request of the API is not allowed below /ui/api/.
func forbidden(r *http.Request) bool {
	info, err := requestInfo.NewRequestInfo(r)
	return err != nil || r.Header.Get("Upgrade") != "" || r.Method == http.MethodConnect || info.Verb == "proxy" ||
		forbiddenSubresources.Has(info.Subresource)
}

// serveAPI passes a request below /ui/api/ to the API, without this prefix and with the credentials of the session.
// The request ends with a session from a link. The API verifies tokens.
func (h *handler) serveAPI(w http.ResponseWriter, r *http.Request) {
	http.StripPrefix(Prefix+"api", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forbidden(r) {
			writeStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "upgrades of the connection and the "+
				"subresources exec, attach, portforward and proxy are not available below "+Prefix+"api/")
			return
		}
		r, content, problem := h.withCredentials(r)
		if problem != "" {
			writeStatus(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, problem)
			return
		}
		if content != nil && content.User != nil {
			ctx, cancel := context.WithTimeout(r.Context(), content.User.Expires.Sub(h.Now()))
			defer cancel()
			r = r.WithContext(ctx)
		}
		r.RequestURI = r.URL.RequestURI()
		h.API.ServeHTTP(w, r)
	})).ServeHTTP(w, r)
}
