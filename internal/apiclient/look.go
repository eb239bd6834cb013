package apiclient

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"k8s.io/client-go/rest"
)

// ServerCheck is what one look at a node's server has shown.
type ServerCheck struct {
	Server    string            // its address: https://host:port
	Err       error             // why it could not be looked at: nobody answers there
	CA        *x509.Certificate // the one that this node trusts and that vouches for the server
	TrustErr  error             // why this node does not trust what the server shows; nil: it does
	ClockSkew time.Duration     // of this host's clock to the server's, to about a second
	HasDate   bool              // the server has told its time
}

// CheckServer looks at the server, and says nothing to it that is not for everybody to
// know: it may be another than the one that the node has joined.
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

// trusted is the authority of the kubeconfig that vouches for what a server shows.
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
		return nil, fmt.Errorf("the kubeconfig names no certificate authority")
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
		return nil, fmt.Errorf("the server belongs to the authority with hash %s, and this node has joined the one with %s", CAHash(last), CAHash(all[0]))
	}
	return nil, err
}

// clockSkew is how far this host's clock is ahead of a server's, which tells whole
// seconds in each answer.
func clockSkew(ctx context.Context, at *url.URL) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, at.JoinPath("/livez").String(), nil)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: unverified.Clone(), DisableKeepAlives: true}}
	began := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	ended := time.Now()
	_ = resp.Body.Close() // it has none
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, err
	}
	return apart(began, ended, theirs), nil
}

// apart is the least that the clocks can be apart, when theirs has told a whole
// second between two times of ours.
func apart(began, ended, theirs time.Time) time.Duration {
	switch {
	case theirs.After(ended):
		return ended.Sub(theirs)
	case theirs.Add(time.Second).Before(began):
		return began.Sub(theirs.Add(time.Second))
	}
	return 0
}

// Leaf is the certificate by which the node is known to its server; nil: it is
// known by something else, such as a token.
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

// Leaf is the certificate itself. The error says why there is none: what was last
// heard of those who were asked for it.
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

// ParseFirstCertificate is the first in a PEM file, which path names for the error.
func ParseFirstCertificate(path string, text []byte) (*x509.Certificate, error) {
	if all := certificates(text); len(all) > 0 {
		return all[0], nil
	}
	return nil, fmt.Errorf("%s has no certificate", path)
}
