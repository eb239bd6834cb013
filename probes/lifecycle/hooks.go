package lifecycle

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/plan"
)

const (
	maxBody      = 10 << 10 // bytes of a response that are read
	maxOutput    = 512      // bytes of a command's output in errors
	maxRedirects = 10       // redirects that are followed
)

// Options configures a Runner.
type Options struct {
	// Exec runs a command in a running container without a timeout.
	Exec func(
		ctx context.Context, id string, cmd []string, timeout time.Duration,
	) (stdout, stderr []byte, exitCode int32, err error)
	HostIPs []string // addresses of pods on the host network
	// UserAgent is the user agent of HTTP hooks. Default: kube-lifecycle/1.37.
	UserAgent string
	// RecordWarning records a warning event of the pod.
	RecordWarning func(pod *corev1.Pod, reason, message string)
	// OnHTTPFallback counts HTTPS hooks that succeeded with plain HTTP.
	OnHTTPFallback func()
}

// Runner runs hooks. It is safe for concurrent use.
type Runner struct {
	Options
	client *http.Client
}

// New returns a Runner.
func New(o Options) *Runner {
	o.UserAgent = cmp.Or(o.UserAgent, "kube-lifecycle/1.37")
	return &Runner{Options: o, client: &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, Proxy: nil,
			// The node has no certificate authority to verify a pod's certificate with.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as documented for the scheme HTTPS
		},
		CheckRedirect: sameHost,
	}}
}

// sameHost follows redirects only within the same host, so that a pod cannot make the node send
// requests elsewhere.
func sameHost(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// Run runs one hook of a running container and waits for it. Errors are *plan.Error if their kind
// is known.
func (r *Runner) Run(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	h *corev1.LifecycleHandler,
	id string,
	podIPs []string,
) error {
	switch {
	case h.Exec != nil:
		return r.exec(ctx, id, h.Exec.Command)
	case h.HTTPGet != nil:
		if pod.Spec.HostNetwork {
			podIPs = r.HostIPs
		}
		return r.get(ctx, pod, c, h.HTTPGet, podIPs)
	case h.Sleep != nil:
		return sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	case h.TCPSocket != nil:
		return invalid("tcpSocket is not supported as a hook")
	}
	return invalid("the hook has no handler")
}

func invalid(text string) error {
	return &plan.Error{Kind: plan.Invalid, Err: errors.New(text)}
}

func (r *Runner) exec(ctx context.Context, id string, cmd []string) error {
	stdout, stderr, code, err := r.Exec(ctx, id, cmd, 0)
	switch {
	case err != nil:
		return fmt.Errorf("run %q: %w", cmd, err)
	case code != 0:
		return fmt.Errorf("run %q: exit code %d: %s", cmd, code, outputExcerpt(stdout, stderr))
	}
	return nil
}

// outputExcerpt returns the beginning of a command's output.
func outputExcerpt(outputs ...[]byte) string {
	all := bytes.TrimSpace(bytes.Join(outputs, nil))
	if len(all) > maxOutput {
		all = all[:maxOutput]
	}
	return strings.ToValidUTF8(string(all), "?")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	}
}

// get sends a request. If an HTTPS server responds with plain HTTP, the request is repeated without
// TLS.
func (r *Runner) get(
	ctx context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	g *corev1.HTTPGetAction,
	podIPs []string,
) error {
	req, err := request(ctx, c, g, podIPs, r.UserAgent)
	if err != nil {
		return &plan.Error{Kind: plan.Invalid, Err: err}
	}
	err = r.do(req)
	if err != nil && req.URL.Scheme == "https" && isPlainHTTPResponse(err) {
		plain := req.Clone(ctx)
		plain.URL.Scheme = "http"
		plain.Header.Del("Authorization") // it must not be sent unencrypted
		if plainErr := r.do(plain); plainErr == nil {
			r.RecordWarning(
				pod,
				"LifecycleHTTPFallback",
				fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded",
					req.URL.Host),
			)
			r.OnHTTPFallback()
			err = nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	case err != nil:
		return fmt.Errorf("httpGet: %w", err)
	}
	return nil
}

// isPlainHTTPResponse reports whether a server responded to TLS with plain HTTP.
func isPlainHTTPResponse(err error) bool {
	var record tls.RecordHeaderError
	return errors.As(err, &record) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

func (r *Runner) do(req *http.Request) error {
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody) // an incomplete response is a response, too
	return resp.Body.Close()
}

func request(
	ctx context.Context,
	c *corev1.Container,
	g *corev1.HTTPGetAction,
	podIPs []string,
	agent string,
) (*http.Request, error) {
	host := g.Host
	if host == "" && len(podIPs) > 0 {
		host = podIPs[0]
	}
	if host == "" {
		return nil, errors.New("the pod has no address")
	}
	port, err := portOf(c, g.Port)
	if err != nil {
		return nil, err
	}
	at, err := url.Parse(g.Path)
	if err != nil { // not a valid path: sent unchanged
		at = &url.URL{Path: g.Path}
	}
	at.Scheme, at.Host = strings.ToLower(string(g.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	if !strings.HasPrefix(at.Path, "/") {
		at.Path = "/" + at.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", agent)
	req.Header.Set("Accept", "*/*")
	set := map[string]bool{}
	for _, h := range g.HTTPHeaders {
		name := http.CanonicalHeaderKey(h.Name)
		switch {
		case name == "Host":
			req.Host = h.Value
		case set[name]:
			req.Header.Add(name, h.Value)
		default:
			req.Header.Set(name, h.Value)
		}
		set[name] = true
	}
	if req.Header.Get("Accept") == "" { // as for probes, an empty header removes the default
		req.Header.Del("Accept")
	}
	return req, nil
}

// portOf resolves a port number or name.
func portOf(c *corev1.Container, p intstr.IntOrString) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, x := range c.Ports {
		if x.Name == p.StrVal {
			return int(x.ContainerPort), nil
		}
	}
	n, err := strconv.Atoi(p.StrVal)
	if err != nil {
		return 0, fmt.Errorf("container %q has no port named %q", c.Name, p.StrVal)
	}
	return n, nil
}
