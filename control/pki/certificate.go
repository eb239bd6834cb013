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
	if c.isValid() {
		return false, nil
	}
	cert, key, err := c.authority.Issue(c.subject)
	if err != nil {
		return false, err
	}
	if err := writeFile(c.authority.path(c.name+".key"), key, 0o600); err != nil {
		return false, err
	}
	if err := writeFile(c.authority.path(c.name+".crt"), cert, 0o644); err != nil {
		return false, err
	}
	c.cert, c.key = cert, key
	for _, l := range c.listeners {
		l.Enqueue()
	}
	return true, nil
}

// isValid tells whether the certificate at hand can stay.
func (c *Certificate) isValid() bool {
	if len(c.cert) == 0 {
		return false
	}
	if _, err := tls.X509KeyPair(c.cert, c.key); err != nil {
		return false
	}
	x, err := parseCertificate(c.cert)
	if err != nil || needsRenewal(x, c.authority.now()) || x.Subject.CommonName != c.subject.Name {
		return false
	}
	if err := x.CheckSignatureFrom(c.authority.cert); err != nil {
		return false
	}
	return coversSubject(x, c.subject)
}

// coversSubject tells whether a certificate names all that it should.
func coversSubject(x *x509.Certificate, s Subject) bool {
	for _, name := range s.DNSNames {
		if !slices.Contains(x.DNSNames, name) {
			return false
		}
	}
	for _, ip := range s.IPAddresses {
		if !slices.ContainsFunc(x.IPAddresses, ip.Equal) {
			return false
		}
	}
	return slices.Equal(x.Subject.Organization, s.Groups) || len(x.Subject.Organization)+len(s.Groups) == 0
}

// RenewAt is when Renew issues another one.
func (c *Certificate) RenewAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, err := parseCertificate(c.cert)
	if err != nil {
		return c.authority.now()
	}
	return renewalTime(x)
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
		Name: "berth-control", ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: names, IPAddresses: addresses,
	}
}

// AdminSubject is who may do everything.
func AdminSubject() Subject {
	return Subject{Name: "berth-admin", Groups: []string{"system:masters"}, ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// KubeletClientUser is the user as whom the server asks nodes.
const KubeletClientUser = "kube-apiserver-kubelet-client"

// KubeletClientSubject is the server as nodes see it. It is of no group: a node says by
// its status where it is asked, and may name a place that takes the server's word for
// more than a node's own.
func KubeletClientSubject() Subject {
	return Subject{Name: KubeletClientUser, ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}
