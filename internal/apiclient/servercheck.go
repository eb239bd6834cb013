package apiclient

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// ServerCheck is the result of CheckServer.
type ServerCheck struct {
	Server    string            // its address, https://host:port
	Err       error             // the server is not reachable
	CA        *x509.Certificate // the trusted authority that issued the server's certificate
	TrustErr  error             // why the certificate is not trusted; nil: it is
	ClockSkew time.Duration     // this host's clock minus the server's, to about a second
	HasDate   bool              // ClockSkew is set
}

// CheckServer inspects the server without sending credentials, because it may not be the server
// that the node has joined.
func (id *Identity) CheckServer(ctx context.Context) ServerCheck {
	config := id.Client.opt.Config
	s := ServerCheck{Server: config.Host}
	at, err := url.Parse(config.Host)
	if err != nil {
		s.Err = err
		return s
	}
	shown, err := presentedBy(ctx, at)
	if err != nil {
		s.Err = err
		return s
	}
	s.CA, s.TrustErr = trusted(config, shown, at.Hostname())
	if ahead, err := clockSkew(ctx, at); err == nil {
		s.ClockSkew, s.HasDate = ahead, true
	}
	return s
}

// ServerVersion returns the version of the API server, for example v1.37.2.
func (c *Client) ServerVersion(ctx context.Context) (string, error) {
	text, err := c.groups[Pods.Group].Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v struct{ GitVersion string }
	if err := json.Unmarshal(text, &v); err != nil {
		return "", fmt.Errorf("version of the API server: %w", err)
	}
	return v.GitVersion, nil
}

// Serves reports whether the server has a resource.
func (c *Client) Serves(ctx context.Context, r Resource) (bool, error) {
	text, err := c.groups[Pods.Group].Get().AbsPath("/apis/"+r.Group.String()).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("resources of %s: %w", r.Group, err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(text, &list); err != nil {
		return false, fmt.Errorf("resources of %s: %w", r.Group, err)
	}
	return slices.ContainsFunc(list.APIResources, func(of metav1.APIResource) bool { return of.Name == r.Name }), nil
}

// trusted returns the authority of the kubeconfig that issued the presented certificate.
func trusted(config *rest.Config, shown []*x509.Certificate, name string) (*x509.Certificate, error) {
	text := config.CAData
	if len(text) == 0 && config.CAFile != "" {
		var err error
		if text, err = os.ReadFile(config.CAFile); err != nil {
			return nil, err
		}
	}
	all := certificates(text)
	if len(all) == 0 {
		return nil, fmt.Errorf("the kubeconfig has no certificate authority")
	}
	if config.ServerName != "" {
		name = config.ServerName
	}
	var err error
	for _, ca := range all {
		if err = verifyChain(ca, shown, name); err == nil {
			return ca, nil
		}
	}
	if last := shown[len(shown)-1]; last.IsCA && CAHash(last) != CAHash(all[0]) {
		return nil, fmt.Errorf(
			"the server has a certificate authority with hash %s, and this node trusts the one with hash %s",
			CAHash(last),
			CAHash(all[0]),
		)
	}
	return nil, err
}

// clockSkew is how far this host's clock is ahead of a server's, whose responses have whole
// seconds.
func clockSkew(ctx context.Context, at *url.URL) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, at.JoinPath("/livez").String(), nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: unverified.Clone(), DisableKeepAlives: true}}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	end := time.Now()
	_ = resp.Body.Close() // empty
	serverTime, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, err
	}
	return skewBetween(start, end, serverTime), nil
}

// skewBetween is the smallest possible difference of the clocks, if the server reported its time in whole
// seconds between two local times.
func skewBetween(start, end, serverTime time.Time) time.Duration {
	switch {
	case serverTime.After(end):
		return end.Sub(serverTime)
	case serverTime.Add(time.Second).Before(start):
		return start.Sub(serverTime.Add(time.Second))
	}
	return 0
}

// Leaf is the client certificate of the node, or nil if it uses other credentials, such as a token.
func (id *Identity) Leaf() (*x509.Certificate, error) {
	if id.Certificate != nil {
		return id.Certificate.Leaf()
	}
	config := rest.CopyConfig(id.Client.opt.Config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, err
	}
	if all := certificates(config.CertData); len(all) > 0 {
		return all[0], nil
	}
	return nil, nil
}

// Leaf is the parsed certificate. Without one, the error is that of the last request.
func (c *Certificate) Leaf() (*x509.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.current != nil:
		return c.current.Leaf, nil
	case c.lastErr != nil:
		return nil, c.lastErr
	}
	return nil, fmt.Errorf("certificate %s: the server has not issued one yet", c.opt.Name)
}

// ParseFirstCertificate returns the first certificate of a PEM file. path is for errors.
func ParseFirstCertificate(path string, text []byte) (*x509.Certificate, error) {
	if all := certificates(text); len(all) > 0 {
		return all[0], nil
	}
	return nil, fmt.Errorf("%s contains no certificate", path)
}
