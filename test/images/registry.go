package images

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// RegistryOptions configure a Registry.
type RegistryOptions struct {
	Addr           string // address to listen on; empty: 127.0.0.1 with any port
	User, Password string // credentials for basic authentication; empty: none required
}

// Registry is an image registry in this process without TLS, on loopback unless the options say otherwise.
type Registry struct {
	Addr string // IP:PORT

	opts   RegistryOptions
	inner  http.Handler
	blobs  string // directory of the blobs, which are too large to keep in memory
	server *http.Server
	served sync.WaitGroup

	mu          sync.Mutex
	counts      map[string]Counts
	onDemand    map[string]func() error  // by repository: pushes its images once
	blocked     map[string]chan struct{} // by repository: closed when released
	halfBlocked map[string]bool          // repositories whose blobs block after the first half
	corrupt     map[string]bool          // repositories whose blobs do not match their digests
	fail        failing
}

// Counts are the requests for one repository, including failed ones.
type Counts struct {
	Manifests    int // GETs of a manifest
	Blobs        int // GETs of a config or a layer
	Blocked      int // GETs of a blob that are blocked now
	Unauthorized int // requests without valid credentials
}

type failing struct{ left, status int }

// NewRegistry starts an empty registry. The caller must close it.
func NewRegistry(o RegistryOptions) (*Registry, error) {
	l, err := net.Listen("tcp", cmp.Or(o.Addr, "127.0.0.1:0"))
	if err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	blobs, err := os.MkdirTemp("", "berth-registry-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start registry: %w", err), l.Close())
	}
	r := &Registry{
		Addr: l.Addr().String(),
		opts: o,
		inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)),
			registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs))),
		blobs:       blobs,
		counts:      map[string]Counts{},
		onDemand:    map[string]func() error{},
		blocked:     map[string]chan struct{}{},
		halfBlocked: map[string]bool{},
	}
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve)}
	r.served.Go(func() { _ = r.server.Serve(l) })
	return r, nil
}

// Close stops the registry and cancels all requests in progress.
func (r *Registry) Close() error {
	r.mu.Lock()
	for repo, released := range r.blocked {
		close(released)
		delete(r.blocked, repo)
	}
	r.mu.Unlock()
	err := r.server.Close()
	r.served.Wait()
	return errors.Join(err, os.RemoveAll(r.blobs))
}

// Push pushes the archive's image to the repository and tag of its name. It ignores the host of the name:
// see HostsToml.
func (r *Registry) Push(ctx context.Context, a Archive) error {
	img, err := Load(a.Path)
	if err != nil {
		return err
	}
	return r.PushImage(ctx, a.Ref, img)
}

// PushOnDemand pushes the archive's image as Push does, but at the first request for its repository. Most tests
// with a registry do not pull.
func (r *Registry) PushOnDemand(a Archive) error {
	n, err := name.ParseReference(a.Ref)
	if err != nil {
		return fmt.Errorf("push %s: %w", a.Ref, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onDemand[n.Context().RepositoryStr()] = sync.OnceValue(func() error { return r.Push(context.Background(), a) })
	return nil
}

// PushImage pushes an image to the repository and tag of ref. It bypasses credentials, counts and faults of
// the registry.
func (r *Registry) PushImage(ctx context.Context, ref string, img v1.Image) error {
	return push(ctx, ref, r.Addr, img, remote.WithTransport(handlerTransport{r.inner}))
}

// Push pushes the archive's image to a registry without credentials at registryURL (http://HOST:PORT), to the
// repository and tag of its name.
func Push(ctx context.Context, a Archive, registryURL string) error {
	img, err := Load(a.Path)
	if err != nil {
		return err
	}
	return push(ctx, a.Ref, strings.TrimPrefix(registryURL, "http://"), img, remote.WithAuth(authn.Anonymous))
}

func push(ctx context.Context, ref, host string, img v1.Image, opts ...remote.Option) error {
	n, err := name.ParseReference(ref)
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	to, err := name.NewTag(host+"/"+n.Context().RepositoryStr()+":"+n.Identifier(), name.Insecure)
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	if err := remote.Write(to, img, append(opts, remote.WithContext(ctx))...); err != nil {
		return fmt.Errorf("push %s to %s: %w", ref, host, err)
	}
	return nil
}

// handlerTransport is an http.RoundTripper that calls a handler directly.
type handlerTransport struct{ handler http.Handler }

func (d handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil {
		req.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// Counts returns the requests for a repository (library/busybox) so far.
func (r *Registry) Counts(repository string) Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[repository]
}

// BlockBlobs blocks every GET of a blob of the repository until release is called or the client
// gives up. release may be called more than once.
func (r *Registry) BlockBlobs(repository string) (release func()) {
	released := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.blocked[repository]; ok {
		close(old)
	}
	r.blocked[repository] = released
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.blocked[repository] == released {
			delete(r.blocked, repository)
			close(released)
		}
	}
}

// BlockBlobsHalfway is BlockBlobs, but sends blobs below one MiB completely and the first half of
// others.
func (r *Registry) BlockBlobsHalfway(repository string) (release func()) {
	r.mu.Lock()
	r.halfBlocked[repository] = true
	r.mu.Unlock()
	return r.BlockBlobs(repository)
}

func (r *Registry) isHalfBlocked(repository string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.halfBlocked[repository]
}

// halfWriter is a response writer that blocks after half of the response.
type halfWriter struct {
	http.ResponseWriter
	hold func()
	left int64 // bytes to send before it blocks; negative: it does not block anymore
}

func (h *halfWriter) WriteHeader(status int) {
	h.left = -1
	if n, err := strconv.ParseInt(h.Header().Get("Content-Length"), 10, 64); err == nil && n >= 1<<20 {
		h.left = n / 2
	}
	h.ResponseWriter.WriteHeader(status)
}

func (h *halfWriter) Write(b []byte) (int, error) {
	if h.left < 0 || int64(len(b)) <= h.left {
		h.left -= min(int64(len(b)), max(h.left, 0))
		return h.ResponseWriter.Write(b)
	}
	sent, err := h.ResponseWriter.Write(b[:h.left])
	if err == nil {
		err = http.NewResponseController(h.ResponseWriter).Flush()
	}
	if err != nil {
		return sent, err
	}
	h.left = -1
	h.hold()
	rest, err := h.ResponseWriter.Write(b[sent:])
	return sent + rest, err
}

// Fail makes the next n requests fail with an HTTP status (503, 429, 404, …).
func (r *Registry) Fail(n, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = failing{n, status}
}

// CorruptBlobs makes the blobs of a repository differ from their digests, or stops doing so.
func (r *Registry) CorruptBlobs(repository string, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.corrupt == nil {
		r.corrupt = map[string]bool{}
	}
	r.corrupt[repository] = on
}

func (r *Registry) isCorrupt(repository string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.corrupt[repository]
}

// corruptingWriter inverts every byte that is written through it.
type corruptingWriter struct{ http.ResponseWriter }

func (l corruptingWriter) Write(b []byte) (int, error) {
	inverted := make([]byte, len(b))
	for i := range b {
		inverted[i] = ^b[i]
	}
	return l.ResponseWriter.Write(inverted)
}

// HostsToml configures containerd, whose registry config_path is dir, to pull the images of host (docker.io,
// quay.io, registry.example:5000) from this registry.
func (r *Registry) HostsToml(dir, host string) error {
	file := filepath.Join(dir, host, "hosts.toml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	url := "http://" + r.Addr
	text := fmt.Sprintf("server = %q\n\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", url, url)
	return os.WriteFile(file, []byte(text), 0o644)
}

// serve counts a request, then fails, rejects, blocks or forwards it.
func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	repo, kind := target(req.URL.Path)
	get := req.Method == http.MethodGet
	authorized := r.authorized(req)
	released, status := r.record(repo, func(c *Counts) {
		switch {
		case !authorized:
			c.Unauthorized++
		case get && kind == "manifests":
			c.Manifests++
		case get && kind == "blobs":
			c.Blobs++
		}
	})
	switch {
	case status != 0:
		writeError(w, status, "UNAVAILABLE", "injected failure")
		return
	case !authorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="test registry"`)
		writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	case released != nil && get && kind == "blobs" && r.isHalfBlocked(repo):
		w = &halfWriter{ResponseWriter: w, hold: func() { r.waitReleased(req.Context(), repo, released) }}
	case released != nil && get && kind == "blobs":
		r.waitReleased(req.Context(), repo, released)
	case get && kind == "blobs" && r.isCorrupt(repo):
		w = corruptingWriter{w}
	}
	if req.Context().Err() != nil {
		return
	}
	if err := r.pushPending(repo); err != nil {
		writeError(w, http.StatusInternalServerError, "UNKNOWN", err.Error())
		return
	}
	r.inner.ServeHTTP(w, req)
}

// pushPending pushes an image that PushOnDemand has added to the repository, before its first request is served.
func (r *Registry) pushPending(repo string) error {
	r.mu.Lock()
	push := r.onDemand[repo]
	r.mu.Unlock()
	if push == nil {
		return nil
	}
	return push()
}

// record updates the counts of a repository. It returns a channel to wait for before a blob is sent, or nil,
// and a status to fail with, or 0.
func (r *Registry) record(repo string, change func(*Counts)) (released chan struct{}, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts[repo]
	change(&c)
	r.counts[repo] = c
	if r.fail.left > 0 {
		r.fail.left--
		status = r.fail.status
	}
	return r.blocked[repo], status
}

func (r *Registry) waitReleased(ctx context.Context, repo string, released chan struct{}) {
	r.addBlocked(repo, 1)
	defer r.addBlocked(repo, -1)
	select {
	case <-released:
	case <-ctx.Done():
	}
}

func (r *Registry) addBlocked(repo string, delta int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts[repo]
	c.Blocked += delta
	r.counts[repo] = c
}

func (r *Registry) authorized(req *http.Request) bool {
	user, password, _ := req.BasicAuth()
	return r.opts.User == "" || user == r.opts.User && password == r.opts.Password
}

// target returns the repository and the kind of a path, for example /v2/<repository>/manifests/<tag>.
func target(path string) (repository, kind string) {
	path = strings.TrimPrefix(path, "/v2/")
	for _, k := range []string{"manifests", "blobs", "tags"} {
		if i := strings.LastIndex(path, "/"+k+"/"); i > 0 {
			return path[:i], k
		}
	}
	return "", ""
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"errors":[{"code":%q,"message":%q}]}`, code, message)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}
