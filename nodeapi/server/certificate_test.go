package server

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSelfSignedCertificateIsKeptWhileValid(t *testing.T) {
	t.Parallel()
	dir, now := filepath.Join(t.TempDir(), "pki"), time.Now()
	serial := func(name string, at time.Time, addresses ...string) string {
		p, err := SelfSignedCertificate(dir, name, addresses, at)
		if err != nil {
			t.Fatal(err)
		}
		leaf := p.have.Leaf
		roots := x509.NewCertPool()
		roots.AddCert(leaf)
		for _, host := range append(addresses, name) {
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: at}); err != nil {
				t.Errorf("%s: %v", host, err)
			}
		}
		return leaf.SerialNumber.String()
	}
	first := serial("n1", now, "10.0.0.1", "fd00::1")
	if again := serial("n1", now.Add(time.Hour), "10.0.0.1"); again != first {
		t.Error("certificate was created again")
	}
	moved := serial("n1", now, "10.0.0.2")
	if moved == first {
		t.Error("certificate was kept for another address")
	}
	if late := serial("n1", now.Add(340*24*time.Hour), "10.0.0.2"); late == moved {
		t.Error("certificate was kept shortly before its expiry")
	}
	if st, err := os.Stat(filepath.Join(dir, "kubelet.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v %v", st.Mode(), err)
	}
}

func TestCertificateFilesAreReloaded(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	own := func(name string) (cert, key []byte) {
		cert, key, err := signSelf(name, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return cert, key
	}
	put := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := replace(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c1, k1 := own("one")
	certFile, keyFile := put("c", c1), put("k", k1)
	p, err := NewDynamicCertificate(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	serves := func(want string) {
		t.Helper()
		c, err := p.Certificate(nil)
		if err != nil || c.Leaf.Subject.CommonName != want {
			t.Errorf("%v is served (%v), want %s", c, err, want)
		}
	}
	serves("one")
	c2, k2 := own("number two")
	put("c", c2)
	serves("one") // key not written yet
	put("k", k2)
	serves("number two")
	put("c", []byte("rubbish"))
	serves("number two")

	put("ca", []byte("rubbish"))
	if _, err := NewDynamicCA(filepath.Join(dir, "ca")); err == nil ||
		!strings.Contains(err.Error(), "no certificate found") {
		t.Errorf("invalid CA file: %v", err)
	}
	if _, err := NewDynamicCA(filepath.Join(dir, "none")); err == nil {
		t.Error("missing CA file was accepted")
	}
	text, err := os.ReadFile(a.file)
	if err != nil {
		t.Fatal(err)
	}
	path := put("ca", text)
	ca, err := NewDynamicCA(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := ca.pool()
	b := newAuthority(t)
	text, _ = os.ReadFile(b.file)
	put("ca", append(text, '\n'))
	after, err := ca.pool()
	if err != nil || before.Equal(after) {
		t.Errorf("previous CA is still in use (%v)", err)
	}
}
