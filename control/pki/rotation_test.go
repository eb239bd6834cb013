package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// verifies reports whether a client that trusts the PEM bundle accepts a PEM certificate chain.
func verifies(t *testing.T, bundle, chain []byte, at time.Time) bool {
	t.Helper()
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	block, rest := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	between.AppendCertsFromPEM(rest)
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err == nil
}

// serverChain returns the chain that the server presents.
func serverChain(t *testing.T, a *Authority) []byte {
	t.Helper()
	c, err := a.Certificate("server", ServerSubject([]string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}))
	if err != nil {
		t.Fatal(err)
	}
	chain, _ := c.CurrentCertKeyContent()
	return chain
}

// TestRotationKeepsTrust rotates twice. Clients that trust only the first authority accept the server, and the server
// accepts their certificates, until the files of the former authorities are removed.
func TestRotationKeepsTrust(t *testing.T) {
	t.Parallel()
	dir, c := t.TempDir(), &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	first := open(t, dir, c)
	firstBundle := first.PEM()
	text, _, err := first.Issue(Subject{Name: "system:node:x", Groups: []string{"system:nodes"}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := parseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	firstNodes, err := first.NodeServingAuthority()
	if err != nil {
		t.Fatal(err)
	}
	serving, _, err := firstNodes.Issue(Subject{Name: "system:node:x", DNSNames: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	trustsNode := func(a *Authority) bool {
		nodes, err := a.NodeServingAuthority()
		if err != nil {
			t.Fatal(err)
		}
		return verifies(t, nodes.PEM(), serving, c.t)
	}
	var retired []string
	hashes := map[string]bool{first.Hash(): true}
	for range 2 {
		c.t = c.t.Add(time.Hour)
		files, err := RotateAuthority(dir, c.now)
		if err != nil || len(files) != 4 {
			t.Fatalf("got files %q, %v", files, err)
		}
		retired = append(retired, files...)
		a := open(t, dir, c)
		if hashes[a.Hash()] {
			t.Error("the authority has a former key")
		}
		hashes[a.Hash()] = true
		chain := serverChain(t, a)
		for name, bundle := range map[string][]byte{"the first authority": firstBundle, "all": a.PEM(),
			"the new authority": a.own} {
			if !verifies(t, bundle, chain, c.t) {
				t.Errorf("a client that trusts %s rejects the server", name)
			}
		}
		if err := a.CheckSignature(client); err != nil || !verifies(t, a.PEM(), text, c.t) {
			t.Errorf("certificate of the first authority: %v", err)
		}
		if !trustsNode(a) {
			t.Error("serving certificate of a node is rejected")
		}
		if hash, err := Hash(a.PEM()); err != nil || hash != a.Hash() {
			t.Errorf("the first certificate of the bundle has hash %s, want %s, %v", hash, a.Hash(), err)
		}
	}
	for _, path := range retired {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	a := open(t, dir, c)
	if a.CheckSignature(client) == nil || verifies(t, a.PEM(), text, c.t) || trustsNode(a) {
		t.Error("the first authority is trusted after its files were removed")
	}
	if verifies(t, firstBundle, serverChain(t, a), c.t) {
		t.Error("the first authority still vouches for the new one")
	}
}

// TestInterruptedRotation starts from the files that a rotation leaves when it is killed between two writes.
func TestInterruptedRotation(t *testing.T) {
	t.Parallel()
	c := &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	before, after := t.TempDir(), t.TempDir()
	old := open(t, before, c)
	copyFiles(t, before, after)
	if _, err := RotateAuthority(after, c.now); err != nil {
		t.Fatal(err)
	}
	rotated := open(t, after, c)
	for name, row := range map[string]struct {
		from map[string]string // file to write: file of the rotated directory
		want *Authority
	}{
		"before the key": {map[string]string{"next-ca.crt": "ca.crt"}, old},
		"with the key":   {map[string]string{"next-ca.crt": "ca.crt", "next-ca.key": "ca.key"}, rotated},
		"after the first rename": {map[string]string{"next-ca.crt": "ca.crt", "ca.key": "ca.key"},
			rotated},
	} {
		dir := t.TempDir()
		copyFiles(t, before, dir)
		for to, from := range row.from {
			text, err := os.ReadFile(filepath.Join(after, from))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, to), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := open(t, dir, c); got.Hash() != row.want.Hash() || !bytes.Equal(got.own, row.want.own) {
			t.Errorf("%s: got another authority", name)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "next-ca*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left over: %q, %v", name, left, err)
		}
	}
	if _, err := RotateAuthority(t.TempDir(), c.now); err == nil {
		t.Error("a directory without an authority was rotated")
	}
}

func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}
