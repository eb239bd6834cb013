package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
)

// NodeServingAuthority returns the authority for kubelet serving certificates.
//
// A node chooses the names and addresses of its serving certificate. One that runs on the server's
// host has the server's addresses, and no rule can distinguish it from a node that only claims
// them. Clients of the API server therefore do not trust this authority. The server trusts it for
// kubelets only.
//
// The key is derived from the authority's key: servers that share that key, and a server restored
// from a backup, trust the nodes without further files. The derivation cannot be reversed.
func (a *Authority) NodeServingAuthority() (*Authority, error) {
	n, err := a.derive("nodes-ca", "berth: authority of nodes", "berth-nodes-ca")
	if err != nil {
		return nil, fmt.Errorf("node serving authority: %w", err)
	}
	return n, n.loadRetired()
}

// FrontProxyAuthority returns the authority for the certificate with which the server authenticates to extension API
// servers. These accept the name of any user from a holder of such a certificate, so the cluster's authority, which
// signs certificates for users, must not be able to issue one. The key is derived like that of NodeServingAuthority.
func (a *Authority) FrontProxyAuthority() (*Authority, error) {
	f, err := a.derive("front-proxy-ca", "berth: authority of the front proxy", "berth-front-proxy-ca")
	if err != nil {
		return nil, fmt.Errorf("front proxy authority: %w", err)
	}
	return f, nil
}

// PodAuthority returns the authority for certificates of pods. The API server does not accept them, and no certificate
// for another purpose has the same authority. The key is derived like that of NodeServingAuthority.
func (a *Authority) PodAuthority() (*Authority, error) {
	p, err := a.derive("pods-ca", "berth: authority of pods", "berth-pods-ca")
	if err != nil {
		return nil, fmt.Errorf("pod authority: %w", err)
	}
	return p, p.loadRetired()
}

// FrontProxyClientName is the common name of the server's certificate for extension API servers.
const FrontProxyClientName = "front-proxy-client"

// FrontProxyClientSubject is the subject of the server's certificate for extension API servers.
func FrontProxyClientSubject() Subject {
	return Subject{Name: FrontProxyClientName, ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// derive loads or creates an authority whose key is derived from this one's.
func (a *Authority) derive(name, purpose, commonName string) (*Authority, error) {
	key, err := deriveKey(a.key, purpose)
	if err != nil {
		return nil, err
	}
	d := &Authority{CertificateDuration: a.CertificateDuration, dir: a.dir, name: name, now: a.now, key: key}
	if d.own, err = os.ReadFile(d.path(name + ".crt")); err == nil {
		d.cert, err = parseCertificate(d.own)
	}
	if err != nil || !key.PublicKey.Equal(d.cert.PublicKey) || needsRenewal(d.cert, d.now()) {
		return d, d.renew(pkix.Name{CommonName: commonName})
	}
	return d, nil
}

// deriveKey derives a P-256 key from another key and a purpose. The result is deterministic.
func deriveKey(from *ecdsa.PrivateKey, purpose string) (*ecdsa.PrivateKey, error) {
	secret, err := from.Bytes()
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		number, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprint(purpose, " ", try), 32)
		if err != nil {
			return nil, err
		}
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), number)
		if err == nil || try == 9 { // one number in 2^32 is not a valid key
			return key, err
		}
	}
}
