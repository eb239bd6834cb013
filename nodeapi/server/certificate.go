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

// stamp tells whether a file is another than before.
type stamp struct {
	at   time.Time
	size int64
}

func stampOf(path string) (stamp, error) {
	st, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{st.ModTime(), st.Size()}, nil
}

// DynamicCA is a file of certificates that sign those of clients. It is read
// again when it has changed.
type DynamicCA struct {
	path string

	mu    sync.Mutex
	read  stamp
	roots *x509.CertPool
}

// NewDynamicCA reads the file. That it cannot be read, or has no certificate, is
// an error that names it.
func NewDynamicCA(path string) (*DynamicCA, error) {
	a := &DynamicCA{path: path}
	_, err := a.pool()
	return a, err
}

// pool returns the certificates, those of before while the file is not good.
func (a *DynamicCA) pool() (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, err := stampOf(a.path)
	if err == nil && a.roots != nil && now == a.read {
		return a.roots, nil
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(a.path)
	}
	roots := x509.NewCertPool()
	if err == nil && !roots.AppendCertsFromPEM(text) {
		err = fmt.Errorf("%s: there is no certificate in it", a.path)
	}
	if err != nil {
		if a.roots != nil { // half written, or about to come back
			return a.roots, nil
		}
		return nil, fmt.Errorf("certificates of clients: %w", err)
	}
	a.roots, a.read = roots, now
	return roots, nil
}

// DynamicCertificate is a certificate and its key in two files, read again when they have
// changed.
type DynamicCertificate struct {
	certFile, keyFile string

	mu        sync.Mutex
	cert, key stamp
	have      *tls.Certificate
}

// NewDynamicCertificate reads the files. That they cannot be read or do not belong together is
// an error that names them.
func NewDynamicCertificate(certFile, keyFile string) (*DynamicCertificate, error) {
	p := &DynamicCertificate{certFile: certFile, keyFile: keyFile}
	_, err := p.Certificate(nil)
	return p, err
}

// Certificate returns the pair, that of before while the files are not good. It
// is what Options.Certificate wants.
func (p *DynamicCertificate) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cert, err := stampOf(p.certFile)
	key, err2 := stampOf(p.keyFile)
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
	return nil, fmt.Errorf("the server's certificate %s and key %s: %w", p.certFile, p.keyFile, err)
}

const (
	ownLife  = 365 * 24 * time.Hour // of a certificate that the node signs itself
	ownRenew = 30 * 24 * time.Hour  // before its end

	ownCert = "kubelet.crt"
	ownKey  = "kubelet.key"
)

// SelfSignedFiles are the names of all files that OwnPair makes, and of what a crash may leave.
func SelfSignedFiles() []string { return []string{ownCert, ownKey, ownCert + ".new", ownKey + ".new"} }

// SelfSignedCertificate is a certificate that the node has signed itself, for its name and its
// addresses, in kubelet.crt and kubelet.key below dir as the kubelet has it. It is
// made where there is none that is good for them and for a while.
func SelfSignedCertificate(dir, name string, addresses []string, now time.Time) (*DynamicCertificate, error) {
	certFile, keyFile := filepath.Join(dir, ownCert), filepath.Join(dir, ownKey)
	if p, err := NewDynamicCertificate(certFile, keyFile); err == nil && p.serves(name, addresses, now) {
		return p, nil
	}
	cert, key, err := signOwn(name, addresses, now)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the node: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of certificates: %w", err)
	}
	// The key first: a certificate whose key is not there yet is not used.
	if err = replace(keyFile, key, 0o600); err == nil {
		err = replace(certFile, cert, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the node's certificate: %w", err)
	}
	return NewDynamicCertificate(certFile, keyFile)
}

// serves reports whether the certificate is good for the node now and some time.
func (p *DynamicCertificate) serves(name string, addresses []string, now time.Time) bool {
	leaf := p.have.Leaf
	if leaf == nil || now.Before(leaf.NotBefore) || now.Add(ownRenew).After(leaf.NotAfter) {
		return false
	}
	return !slices.ContainsFunc(append([]string{name}, addresses...), func(host string) bool { return leaf.VerifyHostname(host) != nil })
}

func signOwn(name string, addresses []string, now time.Time) (cert, key []byte, err error) {
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
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(ownLife), // a client's clock may be behind
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

// replace puts a file in the place of what is there, all of it or nothing.
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
