package pki

import (
	"bytes"
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
	"net/url"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityDuration = 10 * 365 * 24 * time.Hour
	// DefaultCertificateDuration is the default validity of issued certificates.
	DefaultCertificateDuration = 365 * 24 * time.Hour
	// clockSkew is how far NotBefore lies in the past, for clients with a slow clock.
	clockSkew = 5 * time.Minute
)

// Authority is a certificate authority with its files on disk.
type Authority struct {
	// CertificateDuration is the validity of certificates whose Subject has no Duration. It is set
	// before the first certificate is issued. 0 is DefaultCertificateDuration.
	CertificateDuration time.Duration

	dir, name string // base name of the files, without .crt and .key
	now       func() time.Time
	cert      *x509.Certificate
	own       []byte // cert as PEM
	key       *ecdsa.PrivateKey

	retired       []*x509.Certificate // authorities of this name before a rotation
	former, cross []byte              // retired and the signatures of retired authorities for their successors, as PEM
}

// Open opens the certificate authority in the directory, or creates one. It renews the authority's
// certificate, with the same key, when a third of its validity is left.
func Open(dir string, now func() time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate directory: %w", err)
	}
	if err := completeRotation(dir); err != nil {
		return nil, err
	}
	a := &Authority{dir: dir, name: "ca", now: now}
	if err := a.load(); err != nil {
		return nil, err
	}
	return a, a.loadRetired()
}

// load loads or creates the key and the certificate of the cluster's authority.
func (a *Authority) load() error {
	key, err := loadOrCreateKey(a.path("ca.key"))
	if err != nil {
		return err
	}
	a.key = key
	text, err := os.ReadFile(a.path("ca.crt"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a.renew(pkix.Name{CommonName: "berth-ca"})
	case err != nil:
		return fmt.Errorf("certificate authority: %w", err)
	}
	if a.cert, err = parseCertificate(text); err != nil {
		return fmt.Errorf("certificate authority %s: %w", a.path("ca.crt"), err)
	}
	a.own = text
	if !key.PublicKey.Equal(a.cert.PublicKey) {
		return fmt.Errorf("certificate authority: %s does not match %s", a.path("ca.key"), a.path("ca.crt"))
	}
	if needsRenewal(a.cert, a.now()) {
		return a.renew(a.cert.Subject)
	}
	return nil
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// renew creates and stores the authority's certificate.
func (a *Authority) renew(subject pkix.Name) error {
	if err := a.selfSign(subject); err != nil {
		return err
	}
	return writeFile(a.path(a.name+".crt"), a.own, 0o644)
}

// selfSign creates the authority's certificate.
func (a *Authority) selfSign(subject pkix.Name) error {
	template := authorityTemplate(subject)
	template.NotBefore, template.NotAfter = a.now().Add(-clockSkew), a.now().Add(authorityDuration)
	text, err := sign(template, template, a.key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if a.cert, err = parseCertificate(text); err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	a.own = text
	return nil
}

func authorityTemplate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		Subject: subject, IsCA: true, BasicConstraintsValid: true, DNSNames: []string{subject.CommonName},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

// PEM returns the authority's certificate, followed by those of retired authorities that are still trusted.
func (a *Authority) PEM() []byte { return append(bytes.Clone(a.own), a.former...) }

// Hash returns the pin of the authority for joining nodes, in the format of kubeadm: "sha256:" and
// the hex digest of its public key. It does not change with a renewal.
func (a *Authority) Hash() string { return hash(a.cert) }

// Hash returns the pin of a PEM certificate.
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

// Pool returns a pool with the authority, others, and the retired ones of each.
func (a *Authority) Pool(others ...*Authority) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, one := range append(others, a) {
		pool.AddCert(one.cert)
		for _, c := range one.retired {
			pool.AddCert(c)
		}
	}
	return pool
}

// Subject describes the holder and the usage of a certificate.
type Subject struct {
	Name         string
	Groups       []string
	ExtKeyUsages []x509.ExtKeyUsage
	DNSNames     []string
	IPAddresses  []net.IP
	URIs         []*url.URL
	Duration     time.Duration // 0 is the authority's CertificateDuration; limited by the authority's own validity
	// NotBefore and NotAfter, if set, replace Duration.
	NotBefore, NotAfter time.Time
}

// Sign creates a certificate for a public key.
func (a *Authority) Sign(public crypto.PublicKey, s Subject) (pem []byte, err error) {
	if s.Duration == 0 {
		s.Duration = cmp.Or(a.CertificateDuration, DefaultCertificateDuration)
	}
	from, until := a.now().Add(-backdate(s.Duration)), a.now().Add(s.Duration)
	if !s.NotBefore.IsZero() {
		from, until = s.NotBefore, s.NotAfter
	}
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter
	}
	return sign(&x509.Certificate{
		Subject:  pkix.Name{CommonName: s.Name, Organization: s.Groups},
		DNSNames: s.DNSNames, IPAddresses: s.IPAddresses, URIs: s.URIs,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: s.ExtKeyUsages, BasicConstraintsValid: true,
		NotBefore: from, NotAfter: until,
	}, a.cert, public, a.key)
}

// backdate returns how far NotBefore lies in the past. It is limited for short validities, or the
// certificate would need renewal when it is issued.
func backdate(life time.Duration) time.Duration {
	if life <= 0 {
		return clockSkew
	}
	return min(clockSkew, life/10)
}

// CheckSignature checks that the authority's key signed the certificate, or that of a retired authority. It ignores
// the validity period.
func (a *Authority) CheckSignature(c *x509.Certificate) error {
	err := c.CheckSignatureFrom(a.cert)
	for _, one := range a.retired {
		if err == nil {
			break
		}
		err = c.CheckSignatureFrom(one)
	}
	return err
}

// Issue creates a key and a certificate for it.
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

// needsRenewal reports whether at most a third of the certificate's validity is left.
func needsRenewal(c *x509.Certificate, now time.Time) bool {
	return now.After(renewalTime(c))
}

func renewalTime(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(c.NotBefore) / 3)
}
