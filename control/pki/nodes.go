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

// NodeServingAuthority is the authority that signs what nodes show of themselves.
//
// A node says itself which names and addresses it has, and one on the server's host has
// the server's: no rule tells that one from another that only says so. So clients, who
// trust the authority of the server, do not trust this one; the server does, and takes
// what it has signed for nodes alone.
//
// The key follows from the authority's: servers that share that one, and one that is
// restored from a backup of any age, know the nodes all the same. From this key nobody
// comes back to that one.
func (a *Authority) NodeServingAuthority() (*Authority, error) {
	key, err := deriveKey(a.key, "berth: authority of nodes")
	if err != nil {
		return nil, fmt.Errorf("authority of nodes: %w", err)
	}
	n := &Authority{CertificateDuration: a.CertificateDuration, dir: a.dir, name: "nodes-ca", now: a.now, key: key}
	if n.pem, err = os.ReadFile(n.path(n.name + ".crt")); err == nil {
		n.cert, err = parseCertificate(n.pem)
	}
	if err == nil && key.PublicKey.Equal(n.cert.PublicKey) && !needsRenewal(n.cert, n.now()) {
		return n, nil
	}
	return n, n.renew(pkix.Name{CommonName: "berth-nodes-ca"})
}

// deriveKey is a P-256 key that another one and a purpose give, always the same.
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
		if err == nil || try == 9 { // one number in 2^32 is none
			return key, err
		}
	}
}
