package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Certificate is an issued certificate on disk that is renewed in time. The
// server's TLS listens to it and takes a new one while it runs.
type Certificate struct {
	authority *Authority
	name      string // of the files, without .crt and .key
	subject   Subject

	mu        sync.Mutex
	cert, key []byte
	listeners []dynamiccertificates.Listener
}

// Certificate reads or issues the named certificate. It is issued again when it
// is due, when names or addresses are missing in it, or when another authority
// signed it.
func (a *Authority) Certificate(name string, subject Subject) (*Certificate, error) {
	c := &Certificate{authority: a, name: name, subject: subject}
	cert, certErr := os.ReadFile(a.path(name + ".crt"))
	key, keyErr := os.ReadFile(a.path(name + ".key"))
	if certErr == nil && keyErr == nil {
		c.cert, c.key = cert, key
	}
	_, err := c.Renew()
	return c, err
}

// Renew issues the certificate again if that is needed.
func (c *Certificate) Renew() (renewed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good() {
		return false, nil
	}
	cert, key, err := c.authority.Issue(c.subject)
	if err != nil {
		return false, err
	}
	if err := write(c.authority.path(c.name+".key"), key, 0o600); err != nil {
		return false, err
	}
	if err := write(c.authority.path(c.name+".crt"), cert, 0o644); err != nil {
		return false, err
	}
	c.cert, c.key = cert, key
	for _, l := range c.listeners {
		l.Enqueue()
	}
	return true, nil
}

// good tells whether the certificate at hand can stay.
func (c *Certificate) good() bool {
	if len(c.cert) == 0 {
		return false
	}
	if _, err := tls.X509KeyPair(c.cert, c.key); err != nil {
		return false
	}
	x, err := parse(c.cert)
	if err != nil || due(x, c.authority.now()) || x.Subject.CommonName != c.subject.Name {
		return false
	}
	if err := x.CheckSignatureFrom(c.authority.cert); err != nil {
		return false
	}
	return holds(x, c.subject)
}

// holds tells whether a certificate names all that it should.
func holds(x *x509.Certificate, s Subject) bool {
	for _, name := range s.DNS {
		if !slices.Contains(x.DNSNames, name) {
			return false
		}
	}
	for _, ip := range s.IPs {
		if !slices.ContainsFunc(x.IPAddresses, ip.Equal) {
			return false
		}
	}
	return slices.Equal(x.Subject.Organization, s.Groups) || len(x.Subject.Organization)+len(s.Groups) == 0
}

// Due is when Renew issues another one.
func (c *Certificate) Due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, err := parse(c.cert)
	if err != nil {
		return c.authority.now()
	}
	return dueAt(x)
}

// Name tells certificates apart in logs.
func (c *Certificate) Name() string { return c.name }

// CurrentCertKeyContent is the certificate and the key as PEM. The authority's own
// certificate goes with it: a node that knows only the authority's hash finds it
// in what the server shows.
func (c *Certificate) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append(bytes.Clone(c.cert), c.authority.pem...), bytes.Clone(c.key)
}

// AddListener is told of every renewal.
func (c *Certificate) AddListener(l dynamiccertificates.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, l)
}

// ServerSubject is the subject of the certificate that clients see.
func ServerSubject(names []string, addresses []net.IP) Subject {
	return Subject{
		Name: "berth-control", Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNS: names, IPs: addresses,
	}
}

// AdminSubject is who may do everything.
func AdminSubject() Subject {
	return Subject{Name: "berth-admin", Groups: []string{"system:masters"}, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// NodeClient is the user as whom the server asks nodes.
const NodeClient = "kube-apiserver-kubelet-client"

// NodeClientSubject is the server as nodes see it. It is of no group: a node says by
// its status where it is asked, and may name a place that takes the server's word for
// more than a node's own.
func NodeClientSubject() Subject {
	return Subject{Name: NodeClient, Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}
