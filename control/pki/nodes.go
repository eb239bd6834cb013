package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/sha256"
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
	key, err := deriveKey(a.key, "berth: authority of nodes")
	if err != nil {
		return nil, fmt.Errorf("node serving authority: %w", err)
	}
	n := &Authority{CertificateDuration: a.CertificateDuration, dir: a.dir, name: "nodes-ca", now: a.now, key: key}
	if n.own, err = os.ReadFile(n.path(n.name + ".crt")); err == nil {
		n.cert, err = parseCertificate(n.own)
	}
	if err != nil || !key.PublicKey.Equal(n.cert.PublicKey) || needsRenewal(n.cert, n.now()) {
		if err := n.renew(pkix.Name{CommonName: "berth-nodes-ca"}); err != nil {
			return nil, err
		}
	}
	return n, n.loadRetired()
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
