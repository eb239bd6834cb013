package control

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control"
	"berth/control/pki"
	"berth/test/hosts"
)

// TestServiceAccountKeyRotation checks that the server signs new tokens with the new key, publishes both
// keys, and accepts tokens of the previous key until its file is removed.
func TestServiceAccountKeyRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, withDataDir)
	waitForOutput(t, first, "default", "-n", "default", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	token := func(s *Server) string { return strings.TrimSpace(s.Kubectl(t, "create", "token", "default")) }
	published := func(s *Server) int {
		return strings.Count(s.Kubectl(t, "get", "--raw", "/openid/v1/jwks"), `"kid"`)
	}
	before := token(first)
	first.Stop(t)
	previousKeyFile := rotateKey(t, dir)
	second := Start(t, withDataDir)
	after := token(second)
	if tokenHeader(before) == tokenHeader(after) {
		t.Error("tokens before and after the rotation have the same key ID")
	}
	for what, one := range map[string]string{"the previous key": before, "the new key": after} {
		waitForResult(t, "status for a token of "+what, func() string {
			return fmt.Sprint(statusCode(t, second.clientWithToken(t,
				one)))
		},
			fmt.Sprint(http.StatusOK))
	}
	if n := published(second); n != 2 {
		t.Errorf("got %d published keys, want 2", n)
	}
	second.Stop(t)
	if err := os.Remove(previousKeyFile); err != nil {
		t.Fatal(err)
	}
	third := Start(t, withDataDir)
	waitForResult(t, "status for a token of the new key", func() string {
		return fmt.Sprint(statusCode(t, third.clientWithToken(t,
			after)))
	},
		fmt.Sprint(http.StatusOK))
	if code := statusCode(t, third.clientWithToken(t, before)); code != http.StatusUnauthorized {
		t.Errorf("token of a removed key: got status %d, want 401", code)
	}
	if n := published(third); n != 1 {
		t.Errorf("got %d published keys, want 1", n)
	}
}

// rotateKey runs rotate-account-key on a data directory and returns the file of the previous key.
func rotateKey(t *testing.T, dir string) string {
	t.Helper()
	program, err := hosts.BuildControl(t.Context(), hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "rotate-account-key", "--data-dir", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("rotate-account-key: %v: %s", err, out)
	}
	previousKeyFile, rest, _ := strings.Cut(string(out), "\n")
	if filepath.Dir(previousKeyFile) != filepath.Join(dir, "pki") || !strings.Contains(rest, "Restart the server") {
		t.Errorf("rotate-account-key: got output %s", out)
	}
	return previousKeyFile
}

// tokenHeader returns the header of a JWT, which contains the key ID.
func tokenHeader(token string) string { return strings.SplitN(token, ".", 2)[0] }

// TestAuthorityRotation rotates the certificate authority. A node and the administrator that trust only the former one
// keep their access, and the server its access to the node, until the files of the former authority are removed.
func TestAuthorityRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	first := Start(t, withDataDir)
	formerCA, adminCert, adminKey := first.Config.CAData, first.Config.CertData, first.Config.KeyData
	serving := first.issueServingCertificate(t, "x", []string{"127.0.0.1"})
	cert, key, err := first.Authority.Issue(pki.Subject{Name: "system:node:x", Groups: []string{"system:nodes"},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Fatal(err)
	}
	first.Stop(t)
	out, err := runControl(t, "rotate-ca", "--data-dir", dir)
	if err != nil || !strings.Contains(out, "Restart the server") {
		t.Fatalf("rotate-ca: %v: %s", err, out)
	}

	second := Start(t, withDataDir)
	if second.Authority.Hash() == first.Authority.Hash() {
		t.Error("the authority has the former key")
	}
	formerly := func(s *Server, cert, key []byte) kubernetes.Interface {
		return s.clientWith(t, func(c *restclient.Config) { c.CAData, c.CertData, c.KeyData = formerCA, cert, key })
	}
	node := formerly(second, cert, key)
	for name, client := range map[string]kubernetes.Interface{"the administrator": formerly(second,
		adminCert, adminKey), "a node": node} {
		if code := statusCode(t, client); code != http.StatusOK {
			t.Errorf("%s with a former certificate: got status %d, want 200", name, code)
		}
	}
	result := second.requestNodeCertificate(t, node, "x", "")
	if block, _ := pem.Decode(result.certificate); block == nil {
		t.Errorf("renewal of the node's certificate: got %s, want AutoApproved", result.reason)
	}
	eventually(t, "both authorities in kube-root-ca.crt", func() (bool, string) {
		text := second.Kubectl(t, "get", "configmap", "-n", "default", "kube-root-ca.crt", "--ignore-not-found", "-o",
			"jsonpath={.data.ca\\.crt}")
		return strings.Count(text, "BEGIN CERTIFICATE") == 2, text
	})
	second.serveNode(t, "x", serving, formerCA)
	if got := second.Kubectl(t, "get", "--raw", "/api/v1/nodes/x/proxy/"); got != "as x" {
		t.Errorf("response of the node: got %q", got)
	}
	second.Stop(t)

	for path := range strings.Lines(out) {
		if path = strings.TrimSpace(path); strings.HasSuffix(path, ".crt") {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
	third := Start(t, withDataDir)
	if code := statusCode(t, formerly(third, cert, key)); code != 0 {
		t.Errorf("client that trusts the former authority: got status %d, want none", code)
	}
	renewedTrust := third.clientWith(t, func(c *restclient.Config) { c.CertData, c.KeyData = cert, key })
	if code := statusCode(t, renewedTrust); code == http.StatusOK {
		t.Error("a certificate of the former authority was accepted")
	}
	if code := statusCode(t, third.Client); code != http.StatusOK {
		t.Errorf("the administrator: got status %d, want 200", code)
	}
}

// serveNode runs the API of a node that trusts the given authority, and writes its port to the Node.
func (s *Server) serveNode(t *testing.T, node string, pair tls.Certificate, clientCA []byte) {
	t.Helper()
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(clientCA)
	agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "as ", node)
	}))
	agent.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	agent.StartTLS()
	t.Cleanup(agent.Close)
	_, port, _ := net.SplitHostPort(agent.Listener.Addr().String())
	s.Kubectl(t, "patch", "node", node, "--subresource=status", "-p",
		`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":`+port+`}}}}`)
}
