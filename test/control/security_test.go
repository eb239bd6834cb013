package control

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control/pki"
)

// clientAs returns a client with a certificate of the server's CA.
func (s *Server) clientAs(t *testing.T, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	return s.clientWith(t, s.withCertificate(t, name, groups...))
}

// withCertificate adds a client certificate to a configuration.
func (s *Server) withCertificate(t *testing.T, name string, groups ...string) func(*restclient.Config) {
	t.Helper()
	cert, key, err := s.Authority.Issue(pki.Subject{Name: name, Groups: groups, ExtKeyUsages: []x509.ExtKeyUsage{
		x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Fatal(err)
	}
	return func(c *restclient.Config) { c.CertData, c.KeyData = cert, key }
}

// clientWithToken returns a client with a token.
func (s *Server) clientWithToken(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	return s.clientWith(t, func(c *restclient.Config) { c.BearerToken = token })
}

// clientWith returns a client without credentials, changed by the function.
func (s *Server) clientWith(t *testing.T, change func(*restclient.Config)) kubernetes.Interface {
	t.Helper()
	c := restclient.AnonymousClientConfig(s.Config)
	c.QPS = -1
	change(c)
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestUnauthorizedRequestsAreRejected sends requests without credentials, with forged certificates, and
// as users without permission.
func TestUnauthorizedRequestsAreRejected(t *testing.T) {
	t.Parallel()
	s := sharedTwoNodeCluster(t)
	status := func(path string) int { return s.rawStatusCode(t, path) }
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/version", "/version/"} {
		// On a busy machine, a check of the server's health can time out.
		eventually(t, "anonymous "+path, func() (bool, string) {
			code := status(path)
			return code == http.StatusOK, fmt.Sprintf("status %d", code)
		})
	}
	for _, path := range []string{
		"/", "/api", "/apis", "/metrics", "/openapi/v2", "/openid/v1/jwks", "/api/v1/secrets",
		"/api/v1/namespaces/shop/secrets/of-x",
		"/healthz/../api/v1/secrets", "/healthz/%2e%2e/api/v1/secrets", "/healthz/..%2fapi/v1/secrets",
		"//api/v1/secrets",
		"/healthz//../api/v1/secrets",
		"/livez/etcd", "/healthz/ping", "/healthz/", "/HEALTHZ", "/./api/v1/secrets",
		"/api/v1/namespaces/shop/../shop/secrets", "/debug/pprof/", "/logs/",
	} {
		if code := status(path); code < 300 {
			t.Errorf("anonymous %s: got status %d, want an error", path, code)
		}
	}

	soon := time.Now().Add(time.Hour)
	forge := func(usage x509.ExtKeyUsage, until time.Time) (cert, key []byte) {
		return forgedCertificate(t, "berth-ca", usage, until)
	}
	cert, key := forge(x509.ExtKeyUsageClientAuth, soon)
	if code := statusCode(t, s.clientWith(t, func(c *restclient.Config) {
		c.CertData, c.KeyData = cert,
			key
	})); code == http.StatusOK {
		t.Errorf("certificate of another CA with the same name: got status %d, want an error", code)
	}
	for _, row := range []struct {
		what    string
		subject pki.Subject
	}{
		{"for servers only", pki.Subject{Name: "berth-admin", Groups: []string{"system:masters"},
			ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}},
		{"expired", pki.Subject{Name: "berth-admin", Groups: []string{"system:masters"},
			ExtKeyUsages: []x509.ExtKeyUsage{
				x509.ExtKeyUsageClientAuth}, Duration: -time.Minute}},
	} {
		cert, key, err := s.Authority.Issue(row.subject)
		if err != nil {
			t.Fatal(err)
		}
		if code := statusCode(t, s.clientWith(t, func(c *restclient.Config) {
			c.CertData, c.KeyData = cert,
				key
		})); code == http.StatusOK {
			t.Errorf("certificate %s was accepted", row.what)
		}
	}
	// The node authorizer requires both the name and the group of a node.
	for _, client := range []kubernetes.Interface{s.clientAs(t, "system:node:x"), s.clientAs(t, "x", "system:nodes")} {
		if _, err := client.CoreV1().Secrets("shop").Get(t.Context(), "of-x",
			metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("read of a secret with the name or group of a node only: got %v, want Forbidden", err)
		}
	}
}

// forgedCertificate issues a certificate of another CA with the same name.
func forgedCertificate(t *testing.T, authority string, usage x509.ExtKeyUsage,
	until time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	otherCA, err := pki.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err = otherCA.Issue(pki.Subject{Name: authority, Groups: []string{"system:masters"},
		ExtKeyUsages: []x509.ExtKeyUsage{usage}, Duration: time.Until(until)})
	if err != nil {
		t.Fatal(err)
	}
	return certPEM, keyPEM
}

// TestPrivilegeEscalationIsRejected tries to escalate permissions with roles, bindings, impersonation and
// certificates.
func TestPrivilegeEscalationIsRejected(t *testing.T) {
	t.Parallel()
	s := sharedTwoNodeCluster(t)
	ctx := t.Context()
	s.Kubectl(t, "create", "rolebinding", "ann-admin", "-n", "shop", "--clusterrole=admin", "--user=ann")
	ann := s.clientAs(t, "ann")
	waitForResult(t, "permissions of ann", func() string {
		_, err := ann.RbacV1().Roles("shop").List(ctx, metav1.ListOptions{})
		return fmt.Sprint(err)
	}, "<nil>")
	rule := func(verb, group, resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}}
	}
	role := func(name string, rules []rbacv1.PolicyRule) error {
		_, err := ann.RbacV1().Roles("shop").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: rules}, metav1.CreateOptions{})
		return err
	}
	bind := func(name, kind, to string) error {
		_, err := ann.RbacV1().RoleBindings("shop").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind,
				Name: to},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "carl"}},
		}, metav1.CreateOptions{})
		return err
	}
	if err := role("readers", rule("get", "", "pods")); err != nil {
		t.Errorf("role with held permissions: %v", err)
	}
	if err := bind("carl-views", "ClusterRole", "view"); err != nil {
		t.Errorf("binding to a role with held permissions: %v", err)
	}
	for i := range 10 { // repeated, because the role is newer than the cache
		name := fmt.Sprint("at-once-", i)
		if err := role(name, rule("get", "", "pods")); err != nil {
			t.Error(err)
		}
		if err := bind(name, "Role", name); err != nil {
			t.Errorf("binding to a new role: %v", err)
		}
	}
	impersonated := s.clientWith(t, func(c *restclient.Config) {
		cert, key, err := s.Authority.Issue(pki.Subject{Name: "ann", ExtKeyUsages: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth}})
		if err != nil {
			t.Fatal(err)
		}
		c.CertData, c.KeyData, c.Impersonate = cert, key, restclient.ImpersonationConfig{UserName: "root",
			Groups: []string{"system:masters"}}
	})
	for _, row := range []struct {
		what string
		err  error
	}{
		{"a role with all permissions", role("all", rule("*", "*", "*"))},
		{"a role over quotas", role("quotas", rule("delete", "", "resourcequotas"))},
		{"a binding to cluster-admin", bind("carl-all", "ClusterRole", "cluster-admin")},
		{"impersonation of system:masters", func() error {
			_, err := impersonated.CoreV1().Nodes().List(ctx,
				metav1.ListOptions{})
			return err
		}()},
		{"a cluster role", func() error {
			_, err := ann.RbacV1().ClusterRoles().Create(ctx,
				&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine"}},
				metav1.CreateOptions{})
			return err
		}()},
		{"a certificate for itself", func() error {
			_, err := ann.CertificatesV1().CertificateSigningRequests().Create(ctx,
				signingRequest(t, "ann", "system:masters"),
				metav1.CreateOptions{})
			return err
		}()},
	} {
		if !apierrors.IsForbidden(row.err) {
			t.Errorf("%s: got %v, want Forbidden", row.what, row.err)
		}
	}
	if err := role("more", rule("delete", "", "nodes")); err == nil || !strings.Contains(err.Error(),
		`user "ann" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:`) {
		t.Errorf("role with other permissions: got %v", err)
	}
	labelEscalation(t, s)
	master := signingRequest(t, "eve", "system:masters")
	if _, err := s.Client.CertificatesV1().CertificateSigningRequests().Create(ctx, master,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("request for a certificate with system:masters: got %v, want Forbidden", err)
	}
}

// labelEscalation tries to escalate permissions with aggregated roles. The permission to write cluster
// roles does not allow a user to add a role to an aggregated role with a label, or to change an
// aggregation rule.
func labelEscalation(t *testing.T, s *twoNodeCluster) {
	t.Helper()
	ctx := t.Context()
	s.Kubectl(t, "create", "clusterrole", "roles", "--verb=get,update,patch", "--resource=clusterroles")
	s.Kubectl(t, "create", "clusterrolebinding", "rita-roles", "--clusterrole=roles", "--user=rita")
	s.Kubectl(t, "create", "rolebinding", "rita-edit", "-n", "shop", "--clusterrole=edit", "--user=rita")
	s.Apply(t, `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": {"name": "aggregated"},
		"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"not": "there"}}]}}`)
	rita := s.clientAs(t, "rita")
	waitForResult(t, "permissions of rita", func() string {
		_, err := rita.RbacV1().ClusterRoles().Get(ctx, "aggregated", metav1.GetOptions{})
		return fmt.Sprint(err)
	}, "<nil>")
	for _, row := range []struct {
		what, role, patch string
		wantForbidden     bool
	}{
		{"a label on a role with held permissions", "roles", `{"metadata": {"labels": {"a": "b"}}}`, false},
		{"cluster-admin's finalizers", "cluster-admin", `{"metadata": {"finalizers": []}}`, false},
		{"aggregation of cluster-admin into edit", "cluster-admin",
			`{"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}}`, true},
		{"another aggregation rule", "aggregated",
			`{"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"kubernetes.io/bootstrapping": ` +
				`"rbac-defaults"}}]}}`,
			true},
		{"removal of the aggregation rule", "aggregated", `{"aggregationRule": null}`, true},
	} {
		_, err := rita.RbacV1().ClusterRoles().Patch(ctx, row.role, types.MergePatchType, []byte(row.patch),
			metav1.PatchOptions{})
		if row.wantForbidden != apierrors.IsForbidden(err) || !row.wantForbidden && err != nil {
			t.Errorf("%s: got %v, want Forbidden: %v", row.what, err, row.wantForbidden)
		}
	}
}

// signingRequest returns a request for a client certificate with a new key.
func signingRequest(t *testing.T, name string, groups ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return requestOf(t, key, certificatesv1.KubeAPIServerClientSignerName, name, groups...)
}

// requestOf returns a request for a client certificate of a signer.
func requestOf(t *testing.T, key *ecdsa.PrivateKey, signer, name string,
	groups ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name,
		Organization: groups}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// TestAbusiveClients sends large and slow requests, and requests with path traversal.
func TestAbusiveClients(t *testing.T) {
	t.Parallel()
	s := sharedTwoNodeCluster(t)
	ctx := t.Context()
	big := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "big"},
		Data: map[string]string{"k": strings.Repeat("x",
			4<<20)}}
	if _, err := s.Client.CoreV1().ConfigMaps("shop").Create(ctx, big,
		metav1.CreateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("create of 4 MiB: got %v, want RequestEntityTooLarge", err)
	}
	patch := []byte(`{"data":{"k":"` + strings.Repeat("x", 4<<20) + `"}}`)
	if _, err := s.Client.CoreV1().ConfigMaps("shop").Patch(ctx, "of-x", types.MergePatchType, patch,
		metav1.PatchOptions{}); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("patch of 4 MiB: got %v, want RequestEntityTooLarge", err)
	}
	deep := []byte(`{"data":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + "}")
	if _, err := s.Client.CoreV1().ConfigMaps("shop").Patch(ctx, "of-x", types.MergePatchType, deep,
		metav1.PatchOptions{}); err == nil {
		t.Error("patch with 100,000 levels was accepted")
	}

	// The server serves other clients during 200 unfinished requests, and disconnects these after a timeout.
	host := strings.TrimPrefix(s.Config.Host, "https://")
	var conns []net.Conn
	for range 200 {
		conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("GET /api HTTP/1.1\r\nHost: x\r\nX-Slow: ")); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	if _, err := s.Client.CoreV1().Pods("shop").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("request during slow requests: %v", err)
	}
	last := conns[len(conns)-1]
	_ = last.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := last.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("slow clients were disconnected before the other request: %v", err)
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(4 * time.Minute))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("client with unfinished request headers was not disconnected")
		}
	}
	for _, name := range []string{"..", "../of-y", "..%2fof-y", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "of-x/../of-y"} {
		code := 0
		_ = s.x.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/shop/secrets/" +
			name).Do(context.WithoutCancel(ctx)).StatusCode(&code)
		if code == http.StatusOK {
			t.Errorf("node x can read secrets/%s", name)
		}
	}
}

// TestSlowBodiesAreDisconnected checks that the server disconnects clients that send their body very
// slowly, with and without credentials.
func TestSlowBodiesAreDisconnected(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	host := strings.TrimPrefix(s.Config.Host, "https://")
	pair, err := tls.X509KeyPair(s.Config.CertData, s.Config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	var writers sync.WaitGroup
	defer writers.Wait() // they return after their connections are closed
	for _, certificates := range [][]tls.Certificate{nil, {pair}} {
		conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"},
			Certificates: certificates})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: " +
			"x\r\nContent-Type: " +
			"application/json\r\nContent-Length: 100000\r\n\r\n{")); err != nil {
			t.Fatal(err)
		}
		writers.Go(func() {
			for {
				if _, err := conn.Write([]byte(" ")); err != nil {
					return
				}
				<-time.After(time.Second)
			}
		})
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
			_, err := io.Copy(io.Discard, conn)
			results <- err
		}()
	}
	for range 2 {
		if err := <-results; errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("client with an unfinished body was not disconnected")
		}
	}
}

// rawStatusCode requests a path without normalization and returns the status code. Client libraries
// normalize paths.
func (s *Server) rawStatusCode(t *testing.T, path string) int {
	t.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Config.Host, "https://"), &tls.Config{InsecureSkipVerify: true,
		NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		path); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read response of %s: %v", path, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}
