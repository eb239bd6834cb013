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
	maxBody      = 10 << 10 // bytes of an answer that are read
	maxRedirects = 10
)

func (o *Manager) httpRunner(x *probe, c *corev1.Container, a *corev1.HTTPGetAction) func(context.Context) answer {
	port, err := portOf(c, a.Port)
	if err != nil {
		return never(err)
	}
	at, err := x.address(a.Host, port)
	if err != nil {
		return never(err)
	}
	g := &get{header: o.header(a.HTTPHeaders), url: target(string(a.Scheme), at, a.Path)}
	h2c := a.Protocol != nil && *a.Protocol == corev1.HTTPProtocolHTTP2
	g.client = http.Client{Transport: o.dial.transport(h2c), CheckRedirect: stayHere, Timeout: x.timeout}
	return g.run
}

// target is the address of a probe. A path may bring its query.
func target(scheme, at, path string) *url.URL {
	u, err := url.Parse(path)
	if err != nil || u.Host != "" { // no path that a parser knows: sent as it is
		u = &url.URL{Path: path}
	}
	u.Scheme, u.Host = strings.ToLower(scheme), at
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	return u
}

// header is what the spec says, and what is usual where it says nothing. An
// empty Accept is none at all.
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

// get is one HTTP probe. Its timeout begins with the dial.
type get struct {
	client http.Client
	url    *url.URL
	header http.Header
}

func (g *get) run(ctx context.Context) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url.String(), nil)
	if err != nil {
		return answer{result: Unknown, output: err.Error()}
	}
	req.Header, req.Host = g.header.Clone(), g.header.Get("Host")
	resp, err := g.client.Do(req)
	if err != nil {
		return answer{result: Failure, output: err.Error(), late: tooLate(err)}
	}
	defer func() { _ = resp.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	switch code := resp.StatusCode; {
	case err != nil:
		return answer{result: Failure, output: err.Error(), late: tooLate(err)}
	case code >= 400 || code < 200:
		return answer{result: Failure, output: fmt.Sprintf("HTTP probe failed with statuscode: %d", code)}
	case code >= 300:
		return answer{result: Warning, output: fmt.Sprintf("Probe terminated redirects, Response body: %s", body)}
	}
	return answer{result: Success, output: string(body)}
}

// stayHere follows redirects within the host that was asked, and no others: a
// probe is no way to have the node ask anybody anything.
func stayHere(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}
