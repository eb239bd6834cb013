package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/control/authz"
	"berth/control/pki"
)

// TestServerCertificateRotation uses certificates that are valid for a minute. The server replaces them
// before they expire, including the client certificate in the administrator's kubeconfig.
func TestServerCertificateRotation(t *testing.T) {
	t.Parallel()
	s := Start(t, func(c *control.Config) { c.OwnCertificateDuration = time.Minute })
	first := s.servingCertificate(t)
	if life := first.NotAfter.Sub(first.NotBefore); life > 80*time.Second {
		t.Fatalf("got certificate lifetime %s, want at most 80s", life)
	}
	admin := s.Config.CertData
	waitForResultWithin(t, 3*time.Minute, "new serving certificate after expiry of the first", func() string {
		now := s.servingCertificate(t)
		return fmt.Sprint(time.Now().After(first.NotAfter) && now.SerialNumber.Cmp(first.SerialNumber) != 0)
	}, "true")
	// The client certificate expires a little later than the serving certificate.
	waitForResultWithin(t, 3*time.Minute, "status for the administrator's first certificate", func() string {
		return fmt.Sprint(statusCode(t, s.clientWith(t, func(c *restclient.Config) {
			c.CertData, c.KeyData = admin,
				s.Config.KeyData
		})))
	}, "401")
	waitForResult(t, "request with the administrator's new certificate", func() string {
		c, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
		if err != nil {
			return err.Error()
		}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			return err.Error()
		}
		_, err = client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
		return fmt.Sprint(err)
	}, "<nil>")
}

// servingCertificate returns the current serving certificate. The test fails if it is not valid now.
func (s *Server) servingCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	u, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{RootCAs: s.Authority.Pool(), ServerName: "localhost",
		MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatalf("invalid serving certificate: %v", err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// TestReturningNodeRenewsCertificate checks that a node with an expired certificate can only request a
// new client certificate.
func TestReturningNodeRenewsCertificate(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx := t.Context()
	for _, node := range []string{"x", "y"} {
		s.createNode(t, node)
	}
	x := s.clientWithExpiredCertificate(t, s.Authority, "x", time.Hour)
	for what, err := range map[string]error{
		"its own node": errorOf(x.CoreV1().Nodes().Get(ctx, "x", metav1.GetOptions{})),
		"pods":         errorOf(x.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=x"})),
		"its lease": errorOf(x.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "x",
			metav1.GetOptions{})),
		"secrets": errorOf(x.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("node reads %s: got %v, want Forbidden", what, err)
		}
	}
	pending := func(name string) bool {
		r, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Status.Certificate)+len(r.Status.Conditions) == 0
	}
	const client, serving = certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	otherNode := createNodeCSR(t, x, "y", client, certificatesv1.UsageClientAuth)
	servingRequest := createNodeCSR(t, x, "x", serving, certificatesv1.UsageServerAuth)
	renew := func() string { return s.requestNodeCertificate(t, x, "x", machineOf("x")).reason }
	waitForResult(t, "renewal of a certificate that is not known as the last one", renew, "CertificateSuperseded")
	s.recordIssued(t, "x", x.credential)
	waitForResult(t, "renewal of the client certificate", renew, "AutoApproved")
	for what, name := range map[string]string{
		"another node's name": otherNode, "a serving certificate": servingRequest,
	} {
		if !pending(name) { // the request is older than the approved one
			t.Errorf("request for %s was decided", what)
		}
	}
	if err := s.Client.CoreV1().Nodes().Delete(ctx, "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitForResult(t, "request of a deleted node", renew, "NodeRemoved")

	otherCA, err := pki.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]kubernetes.Interface{
		"of another CA":          s.clientWithExpiredCertificate(t, otherCA, "y", time.Hour),
		"expired for eight days": s.clientWithExpiredCertificate(t, s.Authority, "y", 8*24*time.Hour),
		"expired for years":      s.clientWithExpiredCertificate(t, s.Authority, "y", 2*365*24*time.Hour),
		"of an administrator": s.clientWithIssuedCertificate(t, s.Authority, pki.Subject{Name: "berth-admin",
			Groups: []string{"system:masters"}, Duration: -time.Hour}),
		"of a node in system:masters": s.clientWithIssuedCertificate(t, s.Authority, pki.Subject{Name: "system:node:y",
			Groups: []string{"system:nodes", "system:masters"}, Duration: -time.Hour}),
		"for servers only": s.clientWithIssuedCertificate(t, s.Authority, pki.Subject{Name: "system:node:y",
			Groups: []string{"system:nodes"}, Duration: -time.Hour, ExtKeyUsages: []x509.ExtKeyUsage{
				x509.ExtKeyUsageServerAuth}}),
		"of another user": s.clientWithIssuedCertificate(t, s.Authority, pki.Subject{Name: "y",
			Groups: []string{"system:nodes"}, Duration: -time.Hour}),
	} {
		if code := statusCode(t, c); code != 401 {
			t.Errorf("expired certificate %s: got status %d, want 401", what, code)
		}
	}
}

// TestNodeApprovalIsPolicy removes the subjects of the role bindings for automatic approval: requests
// stay pending. After the subjects are added again, pending requests are approved.
func TestNodeApprovalIsPolicy(t *testing.T) {
	t.Parallel()
	s := Start(t)
	ctx := t.Context()
	const signer = certificatesv1.KubeAPIServerClientKubeletSignerName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	joining := s.clientAs(t, "joining", authz.NodeBootstrapGroup)
	node := s.clientAs(t, "system:node:x", "system:nodes")
	createCSR := func(c kubernetes.Interface, name string) func() string {
		t.Helper()
		var r *certificatesv1.CertificateSigningRequest
		waitForResult(t, "creation of a certificate signing request", func() string {
			var err error
			r, err = c.CertificatesV1().CertificateSigningRequests().Create(ctx,
				requestOf(t, key, signer, name, "system:nodes"),
				metav1.CreateOptions{})
			return fmt.Sprint(err)
		}, "<nil>")
		return func() string {
			return s.Kubectl(t, "get", "csr", r.Name, "-o", "jsonpath={.status.conditions[*].type}")
		}
	}
	const join, rotate = "kubeadm:node-autoapprove-bootstrap", "kubeadm:node-autoapprove-certificate-rotation"
	patch := func(binding, subjects string) {
		t.Helper()
		s.Kubectl(t, "patch", "clusterrolebinding", binding, "--type=merge", "-p", `{"subjects": `+subjects+`}`)
	}
	isAllowed := func(permission, user string, groups ...string) func() string {
		return func() string {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user,
				Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: "create", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests",
					Subresource: permission,
				}}}
			review, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(review.Status.Allowed)
		}
	}
	waitForResult(t, "request of a new node", createCSR(joining, "system:node:new"), "Approved")
	waitForResult(t, "renewal by a node", createCSR(node, "system:node:x"), "Approved")

	patch(join, "null")
	waitForResult(t, "permission of new nodes", isAllowed("nodeclient", "joining", authz.NodeBootstrapGroup), "false")
	pending := createCSR(joining, "system:node:new")
	waitForResult(t, "renewal by a node", createCSR(node, "system:node:x"), "Approved")
	if got := pending(); got != "" { // the request is older than the approved one
		t.Errorf("request of a new node without permission: got condition %s, want none", got)
	}
	patch(join, `[{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "`+authz.NodeBootstrapGroup+`"}]`)
	waitForResult(t, "pending request of a new node", pending, "Approved")

	patch(rotate, "null")
	waitForResult(t, "permission of nodes", isAllowed("selfnodeclient", "system:node:x", "system:nodes"), "false")
	pending = createCSR(node, "system:node:x")
	waitForResult(t, "request of a new node", createCSR(joining, "system:node:new"), "Approved")
	if got := pending(); got != "" {
		t.Errorf("renewal without permission: got condition %s, want none", got)
	}
}

// TestReturningNodesCanBeDisabled checks that a NodeReturnPeriod of zero rejects expired certificates.
func TestReturningNodesCanBeDisabled(t *testing.T) {
	t.Parallel()
	s := Start(t, func(c *control.Config) { c.NodeReturnPeriod = 0 })
	if code := statusCode(t, s.clientWithExpiredCertificate(t, s.Authority, "x", time.Minute)); code != 401 {
		t.Errorf("expired node certificate: got status %d, want 401", code)
	}
}

// certificateClient is a client with a certificate.
type certificateClient struct {
	kubernetes.Interface

	credential string // ID of the certificate
}

// clientWithExpiredCertificate returns a client with a node certificate that expired the given time ago.
func (s *Server) clientWithExpiredCertificate(t *testing.T, authority *pki.Authority, node string,
	ago time.Duration) certificateClient {
	t.Helper()
	return s.clientWithIssuedCertificate(t, authority, pki.Subject{Name: "system:node:" + node,
		Groups: []string{"system:nodes"}, Duration: -ago})
}

// clientWithIssuedCertificate returns a client with a certificate of the authority. The default usage is
// client authentication.
func (s *Server) clientWithIssuedCertificate(t *testing.T, authority *pki.Authority,
	subject pki.Subject) certificateClient {
	t.Helper()
	if subject.ExtKeyUsages == nil {
		subject.ExtKeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	cert, key, err := authority.Issue(subject)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.CredentialID(cert)
	if err != nil {
		t.Fatal(err)
	}
	return certificateClient{s.clientWith(t, func(c *restclient.Config) { c.CertData, c.KeyData = cert, key }), id}
}

// createNodeCSR creates a certificate signing request for a node and returns its name. The client must
// be that of a returning node.
func createNodeCSR(t *testing.T, c kubernetes.Interface, node, signer string, use certificatesv1.KeyUsage) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{
		"system:nodes"}}}
	if use == certificatesv1.UsageServerAuth {
		template.DNSNames = []string{node}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.CertificatesV1().CertificateSigningRequests().Create(t.Context(),
		&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, use},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.Spec.Username, "berth.dev:returning-node:") {
		t.Errorf("got user %s, want berth.dev:returning-node:…", r.Spec.Username)
	}
	return r.Name
}
