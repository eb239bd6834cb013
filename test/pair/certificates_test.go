package pair

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/control"
	servers "berth/test/control"
)

// TestNodeCertificateRotation: a node's certificates, valid for one minute here, are renewed while
// it works. A node that was off for longer gets a new certificate with its existing key, although
// its bootstrap token no longer exists.
func TestNodeCertificateRotation(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t, func(c *control.Config) { c.ClusterSigningDuration = time.Minute })}
	p.issueToken()
	dir := t.TempDir()
	p.joinHost(dir, pairOptions{})
	p.nodeIs("Ready", "True")
	p.Apply(t, p.pod("stays", "", "print", "hello", ",", "sleep"))
	p.waitForField("pod", "stays", ready, "True")
	id := p.field("pod", "stays", idOf)
	p.until("the serving certificate", func() string {
		if _, err := p.certificate("kubelet-server"); err != nil {
			return err.Error()
		}
		return ""
	})
	client, serving, pid := p.storedCertificate("kubelet-client"), p.storedCertificate("kubelet-server"), p.Agent.Pid()
	p.works(client, serving)
	if now := p.Agent.Pid(); now != pid {
		t.Errorf("process %d became %d", pid, now)
	}
	if shown, kept := p.servingCertificate(), p.storedCertificate("kubelet-server"); !shown.Equal(kept) &&
		shown.NotBefore.Before(kept.NotBefore) {
		t.Errorf("serving certificate valid until %s, stored one until %s", shown.NotAfter, kept.NotAfter)
	}

	if err := p.Agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Kubectl(t, "delete", "secret", "-n", "kube-system", "bootstrap-token-abcdef")
	client, serving = p.storedCertificate("kubelet-client"), p.storedCertificate("kubelet-server")
	p.until("the certificate to expire", func() string {
		if left := time.Until(client.NotAfter); left > 0 {
			return "valid for " + left.String()
		}
		return ""
	})
	if err := p.Agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Agent.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.works(client, serving)
	if now, n := p.field("pod", "stays", idOf), p.field("pod", "stays", restarts); now != id || n != "0" {
		t.Errorf("container %s became %s, %s restarts", id, now, n)
	}
}

// works waits until both certificates have expired and the node works in both directions with new
// ones.
func (p *Pair) works(client, serving *x509.Certificate) {
	p.t.Helper()
	p.until("other certificates", func() string {
		now := time.Now()
		for name, old := range map[string]*x509.Certificate{"kubelet-client": client, "kubelet-server": serving} {
			c, err := p.certificate(name)
			if err != nil {
				return err.Error()
			}
			if c.Equal(old) || now.Before(old.NotAfter) || now.After(c.NotAfter) {
				return fmt.Sprintf("%s valid from %s to %s was replaced by one from %s to %s", name, old.NotBefore, old.NotAfter,
					c.NotBefore, c.NotAfter)
			}
		}
		return ""
	})
	p.renewed(time.Now())
	p.nodeIs("Ready", "True")
	p.until("logs through the node's certificate", func() string {
		if out, err := p.TryKubectl(p.t, "", "logs", "stays"); err != nil || !strings.Contains(out, "hello") {
			return out
		}
		return ""
	})
}

// renewed waits until the node has renewed its lease after the given time.
func (p *Pair) renewed(at time.Time) {
	p.t.Helper()
	p.until("the node's lease", func() string {
		text, err := p.TryKubectl(p.t, "", "get", "lease", "-n", "kube-node-lease", p.Node, "-o",
			"jsonpath={.spec.renewTime}")
		if err != nil {
			return "none: " + text // a new Node has no lease for a moment
		}
		if renewed, err := time.Parse(time.RFC3339Nano, text); err != nil || renewed.Before(at) {
			return fmt.Sprint("renewed at ", text, err)
		}
		return ""
	})
}

// storedCertificate returns the node's current client certificate.
func (p *Pair) storedCertificate(name string) *x509.Certificate {
	p.t.Helper()
	c, err := p.certificate(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

func (p *Pair) certificate(name string) (*x509.Certificate, error) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(p.Agent.ConfigFile), "pki", name+"-current.pem"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s contains no PEM block", name)
	}
	return x509.ParseCertificate(block.Bytes)
}

// servingCertificate returns the serving certificate of the node's API.
func (p *Pair) servingCertificate() *x509.Certificate {
	p.t.Helper()
	conn, err := tls.Dial("tcp", net.JoinHostPort(p.Host.Gateway.String(), "10250"),
		&tls.Config{RootCAs: p.NodeServingAuthority.Pool(), ServerName: p.Node, MinVersion: tls.VersionTLS12})
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}
