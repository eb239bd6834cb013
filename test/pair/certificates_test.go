package pair

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/control"
	servers "berth/test/control"
)

// TestNodeCertificateRotation uses certificates that are valid for two minutes. A running node rotates
// them. A node that was off until they expired gets a new certificate with its existing key, although
// its bootstrap token no longer exists.
func TestNodeCertificateRotation(t *testing.T) {
	t.Parallel()
	p := &Pair{t: t, Server: servers.Start(t, func(c *control.Config) { c.ClusterSigningDuration = 2 * time.Minute })}
	p.createBootstrapToken()
	dir := t.TempDir()
	p.joinHost(dir, pairOptions{})
	p.waitForNodeCondition("Ready", "True")
	p.Apply(t, p.pod("stays", "", "print", "hello", ",", "sleep"))
	p.waitForField("pod", "stays", readyStatus, "True")
	id := p.field("pod", "stays", containerID)
	p.waitUntil("the serving certificate", func() string {
		if _, err := p.readCertificate("kubelet-server"); err != nil {
			return err.Error()
		}
		return ""
	})
	client, serving, pid := p.storedCertificate("kubelet-client"), p.storedCertificate("kubelet-server"), p.Agent.Pid()
	p.waitForRotation(client, serving)
	if now := p.Agent.Pid(); now != pid {
		t.Errorf("got agent PID %d, want %d: the agent restarted", now, pid)
	}
	p.waitUntil("the stored serving certificate", func() string { // the next rotation may be in progress
		stored, served := p.storedCertificate("kubelet-server"), p.servingCertificate()
		if !served.Equal(stored) && served.NotBefore.Before(stored.NotBefore) {
			return fmt.Sprintf("got expiry %s, stored certificate expires %s", served.NotAfter, stored.NotAfter)
		}
		return ""
	})
	p.checkClientMetrics()

	if err := p.Agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Kubectl(t, "delete", "secret", "-n", "kube-system", "bootstrap-token-abcdef")
	client, serving = p.storedCertificate("kubelet-client"), p.storedCertificate("kubelet-server")
	p.waitUntil("the certificate to expire", func() string {
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
	p.waitForRotation(client, serving)
	if now, n := p.field("pod", "stays", containerID), p.field("pod", "stays", restartCount); now != id || n != "0" {
		t.Errorf("container %s was replaced by %s, %s restarts", id, now, n)
	}
}

// checkClientMetrics checks the metrics of requests to the API server, and of certificates that are
// valid for two minutes and were rotated.
func (p *Pair) checkClientMetrics() {
	p.t.Helper()
	page := p.Kubectl(p.t, "get", "--raw", "/api/v1/nodes/"+p.Host.Name+"/proxy/metrics")
	value := func(pattern string) float64 {
		found := regexp.MustCompile(`(?m)^` + pattern + ` (\S+)$`).FindStringSubmatch(page)
		if found == nil {
			p.t.Errorf("no metric %s", pattern)
			return math.NaN()
		}
		v, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			p.t.Error(err)
		}
		return v
	}
	for pattern, limits := range map[string][2]float64{
		`kubelet_certificate_manager_client_ttl_seconds`:                        {-120, 120},
		`kubelet_certificate_manager_server_ttl_seconds`:                        {-120, 120},
		`kubelet_certificate_manager_server_rotation_seconds_count`:             {1, 1e6},
		`kubelet_certificate_manager_client_expiration_renew_errors`:            {0, 1e6},
		`rest_client_requests_total\{code="200",host="[^"]+",method="PATCH"\}`:  {1, 1e6},
		`rest_client_request_duration_seconds_count\{host="[^"]+",verb="GET"\}`: {1, 1e6},
	} {
		if v := value(pattern); v < limits[0] || v > limits[1] {
			p.t.Errorf("%s: got %v, want a value from %v to %v", pattern, v, limits[0], limits[1])
		}
	}
}

// waitForRotation waits until both certificates have expired and been replaced, and until the node
// reaches the server and the server reaches the node.
func (p *Pair) waitForRotation(client, serving *x509.Certificate) {
	p.t.Helper()
	p.waitUntil("rotated certificates", func() string {
		now := time.Now()
		for name, old := range map[string]*x509.Certificate{"kubelet-client": client, "kubelet-server": serving} {
			c, err := p.readCertificate(name)
			if err != nil {
				return err.Error()
			}
			if c.Equal(old) || now.Before(old.NotAfter) || now.After(c.NotAfter) {
				return fmt.Sprintf("%s valid from %s to %s was replaced by one from %s to %s", name, old.NotBefore,
					old.NotAfter,
					c.NotBefore, c.NotAfter)
			}
		}
		return ""
	})
	p.waitForLeaseRenewal(time.Now())
	p.waitForNodeCondition("Ready", "True")
	p.waitUntil("kubectl logs", func() string {
		if out, err := p.TryKubectl(p.t, "", "logs", "stays"); err != nil || !strings.Contains(out, "hello") {
			return out
		}
		return ""
	})
}

// waitForLeaseRenewal waits until the node renews its lease after the given time.
func (p *Pair) waitForLeaseRenewal(at time.Time) {
	p.t.Helper()
	p.waitUntil("the node's lease", func() string {
		text, err := p.TryKubectl(p.t, "", "get", "lease", "-n", "kube-node-lease", p.Node, "-o",
			"jsonpath={.spec.renewTime}")
		if err != nil {
			return "no lease: " + text // a new Node has no lease at first
		}
		if renewed, err := time.Parse(time.RFC3339Nano, text); err != nil || renewed.Before(at) {
			return fmt.Sprint("renewed at ", text, err)
		}
		return ""
	})
}

// storedCertificate returns the current kubelet-client or kubelet-server certificate of the node.
func (p *Pair) storedCertificate(name string) *x509.Certificate {
	p.t.Helper()
	c, err := p.readCertificate(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// readCertificate reads a certificate from the certificate directory of the node.
func (p *Pair) readCertificate(name string) (*x509.Certificate, error) {
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

// servingCertificate returns the certificate that the node's API presents.
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
