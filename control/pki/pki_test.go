package pki

import (
	"bytes"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// clock is a settable clock.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func open(t *testing.T, dir string, c *clock) *Authority {
	t.Helper()
	a, err := Open(dir, c.now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthorityRenewalKeepsKey(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	first := open(t, dir, c)
	if again := open(t, dir, c); !bytes.Equal(again.PEM(), first.PEM()) {
		t.Error("a second start created another authority")
	}
	cert, _, err := first.Issue(AdminSubject())
	if err != nil {
		t.Fatal(err)
	}
	c.t = c.t.Add(7 * 365 * 24 * time.Hour)
	renewed := open(t, dir, c)
	if bytes.Equal(renewed.PEM(), first.PEM()) {
		t.Error("the authority was not renewed after seven of ten years")
	}
	if renewed.Hash() != first.Hash() {
		t.Error("the renewed authority has another hash: joined nodes would reject it")
	}
	old, err := parseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.CheckSignatureFrom(renewed.cert); err != nil {
		t.Errorf("certificate signed before the renewal: %v", err)
	}
}

func TestOpenRejectsAuthorityWithOtherKey(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Now()}
	open(t, dir, c)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, c.now); err == nil {
		t.Error("opened an authority without its key")
	}
}

func TestCertificateRenew(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Now()}
	a := open(t, dir, c)
	issue := func(addresses ...string) *Certificate {
		var ips []net.IP
		for _, ip := range addresses {
			ips = append(ips, net.ParseIP(ip))
		}
		cert, err := a.Certificate("server", ServerSubject([]string{"localhost"}, ips))
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	pem := func(c *Certificate) string { cert, _ := c.CurrentCertKeyContent(); return string(cert) }
	first := issue("127.0.0.1")
	if pem(issue("127.0.0.1")) != pem(first) {
		t.Error("the same subject got a new certificate")
	}
	second := issue("127.0.0.1", "10.0.0.1")
	if pem(second) == pem(first) {
		t.Error("a new address did not cause a new certificate")
	}
	c.t = c.t.Add(200 * 24 * time.Hour)
	if renewed, err := second.Renew(); renewed || err != nil {
		t.Errorf("after 200 days: %v, %v", renewed, err)
	}
	c.t = c.t.Add(60 * 24 * time.Hour)
	before := pem(second)
	if renewed, err := second.Renew(); !renewed || err != nil || pem(second) == before {
		t.Errorf("after 260 days: %v, %v", renewed, err)
	}
	c.t = c.t.Add(2 * 365 * 24 * time.Hour)
	if renewed, err := second.Renew(); !renewed || err != nil {
		t.Errorf("long after expiry: %v, %v", renewed, err)
	}
}

// TestNodeServingAuthority checks that the authority differs from the cluster's authority, and that
// it is the same for the same cluster authority.
func TestNodeServingAuthority(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Now()}
	a := open(t, dir, c)
	of := func(a *Authority) *Authority {
		n, err := a.NodeServingAuthority()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	text, _, err := of(a).Issue(Subject{Name: "system:node:x", DNSNames: []string{"localhost"},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	trusts := func(pool *x509.CertPool) bool {
		_, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost", CurrentTime: c.t})
		return err == nil
	}
	if trusts(a.Pool()) {
		t.Error("clients of the API server trust a node's certificate")
	}
	if !trusts(a.Pool(of(a))) {
		t.Error("the server does not trust the node's certificate")
	}
	first := of(a)
	if again := of(open(t, dir, c)); !bytes.Equal(first.PEM(), again.PEM()) {
		t.Error("a second start created another certificate")
	}
	copied := t.TempDir()
	for _, f := range []string{"ca.crt", "ca.key"} {
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err == nil {
			err = os.WriteFile(filepath.Join(copied, f), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if other := of(open(t, copied, c)); !trusts(other.Pool()) || other.Hash() != first.Hash() {
		t.Error("a server with the same keys does not trust the node")
	}
	if other := of(open(t, t.TempDir(), c)); trusts(other.Pool()) || other.Hash() == first.Hash() {
		t.Error("a server with other keys trusts the node")
	}
	if err := os.WriteFile(filepath.Join(dir, "nodes-ca.crt"), a.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if repaired := of(a); !trusts(repaired.Pool()) {
		t.Error("the certificate of another authority was accepted")
	}
	c.t = c.t.Add(7 * 365 * 24 * time.Hour)
	if renewed := of(a); bytes.Equal(renewed.PEM(), first.PEM()) || renewed.Hash() != first.Hash() {
		t.Error("not renewed after seven of ten years, or renewed with another key")
	}
}

// TestKubeletClientIsNotInSystemMasters checks this also for a certificate of an earlier release.
func TestKubeletClientIsNotInSystemMasters(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Now()}
	a := open(t, dir, c)
	former := KubeletClientSubject()
	former.Groups = []string{"system:masters"}
	for _, subject := range []Subject{former, KubeletClientSubject()} {
		if _, err := a.Certificate("node-client", subject); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "node-client.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if x, err := parseCertificate(text); err != nil || x.Subject.CommonName != KubeletClientUser ||
		len(x.Subject.Organization) != 0 {
		t.Errorf("kubelet client certificate: %v, %v", x.Subject, err)
	}
}

func TestAdminKubeconfigModeAndRenewal(t *testing.T) {
	dir, c := t.TempDir(), &clock{time.Now()}
	a := open(t, filepath.Join(dir, "pki"), c)
	path := filepath.Join(dir, "admin.kubeconfig")
	write := func(server string) []byte {
		if err := a.WriteKubeconfig(path, server, AdminSubject()); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := write("https://127.0.0.1:6443")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the kubeconfig: %v, %v", info.Mode(), err)
	}
	if !bytes.Equal(write("https://127.0.0.1:6443"), first) {
		t.Error("a current kubeconfig was replaced")
	}
	moved := write("https://127.0.0.1:7443")
	if config, err := clientcmd.Load(moved); err != nil || config.Clusters["berth"].Server != "https://127.0.0.1:7443" {
		t.Errorf("after a change of the server URL: %v", err)
	}
	former := AdminSubject()
	former.Groups = []string{MastersGroup}
	if err := a.WriteKubeconfig(path, "https://127.0.0.1:7443", former); err != nil {
		t.Fatal(err)
	}
	text := write("https://127.0.0.1:7443")
	if groups := kubeconfigGroups(t, text); !slices.Equal(groups, []string{AdminsGroup}) {
		t.Errorf("kubeconfig of an earlier release: got groups %q, want %q", groups, AdminsGroup)
	}
	moved = text
	c.t = c.t.Add(300 * 24 * time.Hour)
	if bytes.Equal(write("https://127.0.0.1:7443"), moved) {
		t.Error("a kubeconfig that needs renewal was kept")
	}
	for _, f := range []string{"ca.key"} {
		if info, err := os.Stat(filepath.Join(dir, "pki", f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode of %s: %v, %v", f, info.Mode(), err)
		}
	}
}

// kubeconfigGroups returns the groups in the certificate of the administrator's kubeconfig.
func kubeconfigGroups(t *testing.T, text []byte) []string {
	t.Helper()
	config, err := clientcmd.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCertificate(config.AuthInfos[AdminSubject().Name].ClientCertificateData)
	if err != nil {
		t.Fatal(err)
	}
	return cert.Subject.Organization
}

// TestCertificateDoesNotOutliveAuthority checks that a certificate expires no later than its
// authority.
func TestCertificateDoesNotOutliveAuthority(t *testing.T) {
	a := open(t, t.TempDir(), &clock{time.Now()})
	s := AdminSubject()
	s.Duration = 50 * 365 * 24 * time.Hour
	text, _, err := a.Issue(s)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err := parseCertificate(text); err != nil || cert.NotAfter.After(a.cert.NotAfter) {
		t.Errorf("expires at %v, the authority at %v", cert.NotAfter, a.cert.NotAfter)
	}
}
