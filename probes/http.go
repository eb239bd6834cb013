package probes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	maxBody      = 10 << 10 // bytes of the response body that are read
	maxRedirects = 10
)

func (o *Manager) httpRunner(x *probe, c *corev1.Container, a *corev1.HTTPGetAction) func(context.Context) outcome {
	port, err := portOf(c, a.Port)
	if err != nil {
		return errorRunner(err)
	}
	at, err := x.address(a.Host, port)
	if err != nil {
		return errorRunner(err)
	}
	g := &httpGet{header: o.header(a.HTTPHeaders), url: probeURL(string(a.Scheme), at, a.Path)}
	h2c := a.Protocol != nil && *a.Protocol == corev1.HTTPProtocolHTTP2
	g.client = http.Client{Transport: o.dial.transport(h2c), CheckRedirect: sameHostOnly, Timeout: x.timeout}
	return g.run
}

// probeURL builds the URL of a probe. The path may contain a query.
func probeURL(scheme, at, path string) *url.URL {
	u, err := url.Parse(path)
	if err != nil || u.Host != "" { // not a valid path: sent unchanged
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host = strings.ToLower(scheme), at
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	return u
}

// header returns the headers of the spec and the defaults. An empty Accept header removes the
// default.
func (o *Manager) header(list []corev1.HTTPHeader) http.Header {
	h := http.Header{}
	for _, x := range list {
		h.Add(textproto.CanonicalMIMEHeaderKey(x.Name), x.Value)
	}
	if _, set := h["User-Agent"]; !set {
		h.Set("User-Agent", o.opt.UserAgent)
	}
	if _, set := h["Accept"]; !set {
		h.Set("Accept", "*/*")
	} else if h.Get("Accept") == "" {
		h.Del("Accept")
	}
	return h
}

// httpGet is an HTTP probe. Its timeout includes the dial.
type httpGet struct {
	client http.Client
	url    *url.URL
	header http.Header
}

func (g *httpGet) run(ctx context.Context) outcome {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url.String(), nil)
	if err != nil {
		return outcome{result: Unknown, output: err.Error()}
	}
	req.Header, req.Host = g.header.Clone(), g.header.Get("Host")
	resp, err := g.client.Do(req)
	if err != nil {
		return outcome{result: Failure, output: err.Error(), timedOut: isTimeout(err)}
	}
	defer func() { _ = resp.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch code := resp.StatusCode; {
	case err != nil:
		return outcome{result: Failure, output: err.Error(), timedOut: isTimeout(err)}
	case code >= 400 || code < 200:
		return outcome{result: Failure, output: fmt.Sprintf("HTTP probe failed with statuscode: %d", code)}
	case code >= 300:
		return outcome{result: Warning, output: fmt.Sprintf("Probe terminated redirects, Response body: %s", body)}
	}
	return outcome{result: Success, output: string(body)}
}

// sameHostOnly follows redirects only within the same host, so that a pod cannot make the node send
// requests elsewhere.
func sameHostOnly(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}
