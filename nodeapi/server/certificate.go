package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// fileVersion detects changes of a file.
type fileVersion struct {
	at   time.Time
	size int64
}

func versionOf(path string) (fileVersion, error) {
	st, err := os.Stat(path)
	if err != nil {
		return fileVersion{}, err
	}
	return fileVersion{st.ModTime(), st.Size()}, nil
}

// DynamicCA is a CA bundle for client certificates. The file is reloaded when it changes.
type DynamicCA struct {
	path string

	mu    sync.Mutex
	read  fileVersion
	roots *x509.CertPool
}

// NewDynamicCA loads the file. An unreadable file or one without certificates is an error.
func NewDynamicCA(path string) (*DynamicCA, error) {
	a := &DynamicCA{path: path}
	_, err := a.pool()
	return a, err
}

// pool returns the certificates. While the file is invalid it returns the previous ones.
func (a *DynamicCA) pool() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := versionOf(a.path)
	if err == nil && a.roots != nil && now == a.read {
		return a.roots, nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(a.path)
	}
	roots := x509.NewCertPool()
	if err == nil && !roots.AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s: no certificate found", a.path)
	}
	if err != nil {
		if a.roots != nil { // partially written, or about to be replaced
			return a.roots, nil
		}
		return nil, fmt.Errorf("client CA: %w", err)
	}
	a.roots, a.read = roots, now
	return roots, nil
}

// DynamicCertificate is a serving certificate with its key. The files are reloaded when they
// change.
type DynamicCertificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key fileVersion
	have      *tls.Certificate
}

// NewDynamicCertificate loads the files. Unreadable or mismatched files are an error.
func NewDynamicCertificate(certFile, keyFile string) (*DynamicCertificate, error) {
	p := &DynamicCertificate{certFile: certFile, keyFile: keyFile}
	_, err := p.Certificate(nil)
	return p, err
}

// Certificate returns the certificate for Options.Certificate. While the files are invalid it
// returns the previous one.
func (p *DynamicCertificate) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cert, err := versionOf(p.certFile)
	key, err2 := versionOf(p.keyFile)
	err = errors.Join(err, err2)
	if err == nil && p.have != nil && cert == p.cert && key == p.key {
		return p.have, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(p.certFile, p.keyFile); err == nil {
			p.have, p.cert, p.key = &pair, cert, key
			return p.have, nil
		}
	}
	if p.have != nil {
		return p.have, nil
	}
	return nil, fmt.Errorf("load serving certificate %s and key %s: %w", p.certFile, p.keyFile, err)
}

const (
	selfSignedLifetime = 365 * 24 * time.Hour // validity of a self-signed certificate
	selfSignedRenewal  = 30 * 24 * time.Hour  // remaining validity at which it is renewed

	selfSignedCert = "kubelet.crt"
	selfSignedKey  = "kubelet.key"
)

// SelfSignedFiles are the names of all files that SelfSignedCertificate creates, including those
// that a crash can leave.
func SelfSignedFiles() []string {
	return []string{selfSignedCert, selfSignedKey, selfSignedCert + ".new", selfSignedKey + ".new"}
}

// SelfSignedCertificate returns a self-signed certificate for the node's name and addresses, in
// kubelet.crt and kubelet.key in dir as for the kubelet. It is created if there is none that is
// valid for them and for the near future.
func SelfSignedCertificate(dir, name string, addresses []string, now time.Time) (*DynamicCertificate, error) {
	certFile, keyFile := filepath.Join(dir, selfSignedCert), filepath.Join(dir, selfSignedKey)
	if p, err := NewDynamicCertificate(certFile, keyFile); err == nil && p.serves(name, addresses, now) {
		return p, nil
	}
	cert, key, err := signSelf(name, addresses, now)
	if err != nil {
		return nil, fmt.Errorf("create serving certificate: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate directory: %w", err)
	}
	// The key is written first: a certificate without its key is not used.
	if err = replace(keyFile, key, 0o600); err == nil {
		err = replace(certFile, cert, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("store serving certificate: %w", err)
	}
	return NewDynamicCertificate(certFile, keyFile)
}

// serves reports whether the certificate is valid for the node now and in the near future.
func (p *DynamicCertificate) serves(name string, addresses []string, now time.Time) bool {
	leaf := p.have.Leaf
	if leaf == nil || now.Before(leaf.NotBefore) || now.Add(selfSignedRenewal).After(leaf.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(
		append([]string{name}, addresses...),
		func(host string) bool { return leaf.VerifyHostname(host) != nil },
	)
}

func signSelf(name string, addresses []string, now time.Time) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLifetime), // a client's clock can be behind
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, DNSNames: []string{name},
	}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		}
	}
	signed, err := x509.CreateCertificate(rand.Reader, t, t, &pair.PublicKey, pair)
	if err != nil {
		return nil, nil, err
	}
	packed, err := x509.MarshalECPrivateKey(pair)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: packed}), nil
}

// replace replaces a file atomically.
func replace(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
