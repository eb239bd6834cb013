package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityDuration = 10 * 365 * 24 * time.Hour
	// DefaultCertificateDuration is how long certificates are good that nothing else is said of.
	DefaultCertificateDuration = 365 * 24 * time.Hour
	// clockSkew lets clocks that are a little behind accept a new certificate.
	clockSkew = 5 * time.Minute
)

// Authority is a certificate authority on disk.
type Authority struct {
	// CertificateDuration is how long a certificate is good whose Subject does not say it. It is
	// set before the first is issued; 0 is a year.
	CertificateDuration time.Duration

	dir, name string // of the files, without .crt and .key
	now       func() time.Time
	cert      *x509.Certificate
	pem       []byte
	key       *ecdsa.PrivateKey
}

// Open reads the authority in the directory, or makes one; it renews the
// authority's certificate (with the same key) when a third of its time is left.
func Open(dir string, now func() time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of certificates: %w", err)
	}
	a := &Authority{dir: dir, name: "ca", now: now}
	key, err := loadOrCreateKey(a.path("ca.key"))
	if err != nil {
		return nil, err
	}
	a.key = key
	text, err := os.ReadFile(a.path("ca.crt"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, a.renew(pkix.Name{CommonName: "berth-ca"})
	case err != nil:
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	if a.cert, err = parseCertificate(text); err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", a.path("ca.crt"), err)
	}
	a.pem = text
	if !key.PublicKey.Equal(a.cert.PublicKey) {
		return nil, fmt.Errorf("certificate authority: %s does not belong to %s", a.path("ca.key"), a.path("ca.crt"))
	}
	if needsRenewal(a.cert, now()) {
		return a, a.renew(a.cert.Subject)
	}
	return a, nil
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// renew makes the authority's certificate.
func (a *Authority) renew(subject pkix.Name) error {
	template := &x509.Certificate{
		Subject: subject, IsCA: true, BasicConstraintsValid: true, DNSNames: []string{subject.CommonName},
		KeyUsage:  x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		NotBefore: a.now().Add(-clockSkew), NotAfter: a.now().Add(authorityDuration),
	}
	text, err := sign(template, template, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if a.cert, err = parseCertificate(text); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	a.pem = text
	return writeFile(a.path(a.name+".crt"), text, 0o644)
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// Hash pins the authority: "sha256:" and the hex digest of its public key, as
// joining nodes and kubeadm know it. It outlives a renewal.
func (a *Authority) Hash() string { return hash(a.cert) }

// Hash pins the authority whose certificate is given as PEM.
func Hash(text []byte) (string, error) {
	c, err := parseCertificate(text)
	if err != nil {
		return "", err
	}
	return hash(c), nil
}

func hash(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Pool holds the authority for verification, and others.
func (a *Authority) Pool(others ...*Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, one := range append(others, a) {
		pool.AddCert(one.cert)
	}
	return pool
}

// Subject is whom a certificate is for and what it may be used for.
type Subject struct {
	Name         string
	Groups       []string
	ExtKeyUsages []x509.ExtKeyUsage
	DNSNames     []string
	IPAddresses  []net.IP
	Duration     time.Duration // 0 is the authority's Life; never beyond the authority's own end
}

// Sign makes a certificate for a public key.
func (a *Authority) Sign(public crypto.PublicKey, s Subject) (pem []byte, err error) {
	if s.Duration == 0 {
		s.Duration = cmp.Or(a.CertificateDuration, DefaultCertificateDuration)
	}
	until := a.now().Add(s.Duration)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	return sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: s.Name, Organization: s.Groups},
		DNSNames: s.DNSNames, IPAddresses: s.IPAddresses,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: s.ExtKeyUsages, BasicConstraintsValid: true,
		NotBefore: a.now().Add(-backdate(s.Duration)), NotAfter: until,
	}, a.cert, public, a.key)
}

// backdate is how much earlier than now a certificate begins: never so much of a short
// life that it is due when it is issued.
func backdate(life time.Duration) time.Duration {
	if life <= 0 {
		return clockSkew
	}
	return min(clockSkew, life/10)
}

// CheckSignature tells whether the authority's key has signed the certificate, whatever the
// time is.
func (a *Authority) CheckSignature(c *x509.Certificate) error { return c.CheckSignatureFrom(a.cert) }

// Issue makes a key and a certificate for it.
func (a *Authority) Issue(s Subject) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if cert, err = a.Sign(k.Public(), s); err != nil {
		return nil, nil, fmt.Errorf("certificate for %s: %w", s.Name, err)
	}
	key, err = encodeKey(k)
	return cert, key, err
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

// needsRenewal tells whether a third or less of a certificate's time is left.
func needsRenewal(c *x509.Certificate, now time.Time) bool {
	return now.After(renewalTime(c))
}

func renewalTime(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}
