package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Certificate is an issued certificate on disk that can be renewed. It implements
// dynamiccertificates.CertKeyContentProvider and notifies its listeners of a renewal.
type Certificate struct {
	authority *Authority
	name      string // base name of the files, without .crt and .key
	subject   Subject

	mu        sync.Mutex
	cert, key []byte
	listeners []dynamiccertificates.Listener
}

// Certificate loads or issues the named certificate. It is issued again if it needs renewal, lacks
// names or addresses of the subject, or was signed by another authority.
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

// Renew issues the certificate again if necessary.
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

// isValid reports whether the current certificate can stay.
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

// coversSubject reports whether a certificate has all names, addresses and groups of the subject.
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

// RenewAt returns when Renew issues a new certificate.
func (c *Certificate) RenewAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	x, err := parseCertificate(c.cert)
	if err != nil {
		return c.authority.now()
	}
	return renewalTime(x)
}

// Name identifies the certificate in logs.
func (c *Certificate) Name() string { return c.name }

// CurrentCertKeyContent returns the certificate chain and the key as PEM. The chain includes the
// authority's certificate: a joining node knows only its hash and finds it there. It also includes the
// signatures of retired authorities, for clients that trust only these.
func (c *Certificate) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Concat(c.cert, c.authority.own, c.authority.cross), bytes.Clone(c.key)
}

// AddListener registers a listener for renewals.
func (c *Certificate) AddListener(l dynamiccertificates.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners = append(c.listeners, l)
}

// ServerSubject is the subject of the API server's certificate.
func ServerSubject(names []string, addresses []net.IP) Subject {
	return Subject{
		Name: "berth-control", ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: names, IPAddresses: addresses,
	}
}

// AdminsGroup is the group of the administrator. It has kubeadm's name and its permissions come from a
// ClusterRoleBinding.
const AdminsGroup = "kubeadm:cluster-admins"

// AdminSubject is the subject of the administrator's certificate.
func AdminSubject() Subject {
	return Subject{
		Name:         "berth-admin",
		Groups:       []string{AdminsGroup},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// MastersGroup may do everything. No role or binding limits it.
const MastersGroup = "system:masters"

// SuperAdminSubject is the subject of the certificate for emergencies, in group system:masters.
func SuperAdminSubject() Subject {
	return Subject{
		Name:         "berth-super-admin",
		Groups:       []string{MastersGroup},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// CredentialID returns the ID of a PEM certificate, with which the API server identifies the credential of a user.
func CredentialID(text []byte) (string, error) {
	c, err := parseCertificate(text)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(c.Raw)
	return "X509SHA256=" + hex.EncodeToString(sum[:]), nil
}

// KubeletClientUser is the user name of the server in requests to kubelets.
const KubeletClientUser = "kube-apiserver-kubelet-client"

// KubeletClientSubject is the subject of the server's client certificate for kubelets. It has no
// groups: the server connects to the address in the node's status, which could point to a service
// that trusts the server more than the node.
func KubeletClientSubject() Subject {
	return Subject{Name: KubeletClientUser, ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}
