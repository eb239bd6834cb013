package control

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"

	"berth/control"
	"berth/control/pki"
)

// attempt is an operation of node x, and whether the server must allow it.
type attempt struct {
	operation string
	allowed   bool
	try       func() error
}

// TestNodePermissions tries, as node x, operations on its own objects and on those of node y.
func TestNodePermissions(t *testing.T) {
	t.Parallel()
	s := newTwoNodeCluster(t)
	ctx := t.Context()
	for _, attempts := range [][]attempt{s.readAttempts(ctx), s.podWriteAttempts(ctx), s.mirrorPodAttempts(t),
		s.tokenAttempts(t), s.nodeAttempts(ctx), s.deviceAttempts(t)} {
		for _, a := range attempts {
			err := a.try()
			if a.allowed && err != nil {
				t.Errorf("node x cannot %s: %v", a.operation, err)
			}
			if !a.allowed && !apierrors.IsForbidden(err) {
				t.Errorf("node x tries to %s: got %v, want Forbidden", a.operation, err)
			}
		}
	}
	// A node cannot read the secret of a deleted pod.
	if err := s.Client.CoreV1().Pods("shop").Delete(ctx, "on-x", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	waitForResult(t, "read of a deleted pod's secret is forbidden", func() string {
		_, err := s.x.CoreV1().Secrets("shop").Get(ctx, "of-x", metav1.GetOptions{})
		return fmt.Sprint(apierrors.IsForbidden(err))
	}, "true")
}

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }

// readAttempts returns read operations.
func (s *twoNodeCluster) readAttempts(ctx context.Context) []attempt {
	core, get := s.x.CoreV1(), metav1.GetOptions{}
	fieldSelector := func(selector string) metav1.ListOptions { return metav1.ListOptions{FieldSelector: selector} }
	return []attempt{
		{"read a secret of its pod", true, func() error { return errorOf(core.Secrets("shop").Get(ctx, "of-x", get)) }},
		{"read a secret of another node's pod", false, func() error {
			return errorOf(core.Secrets("shop").Get(ctx, "of-y",
				get))
		}},
		{"read an unreferenced secret", false, func() error {
			return errorOf(core.Secrets("kube-system").Get(ctx, "none",
				get))
		}},
		{"list secrets", false, func() error { return errorOf(core.Secrets("shop").List(ctx, fieldSelector(""))) }},
		{"list all secrets", false, func() error { return errorOf(core.Secrets("").List(ctx, fieldSelector(""))) }},
		{"watch a secret of another node's pod", false, func() error {
			return errorOf(core.Secrets("shop").Watch(ctx,
				fieldSelector("metadata.name=of-y")))
		}},
		{"list a secret of its pod by name", true, func() error {
			return errorOf(core.Secrets("shop").List(ctx,
				fieldSelector("metadata.name=of-x")))
		}},
		{"change a secret of its pod", false, func() error {
			return errorOf(core.Secrets("shop").Patch(ctx, "of-x", types.MergePatchType, []byte(`{"data":{}}`),
				metav1.PatchOptions{}))
		}},
		{"read a ConfigMap of its pod", true, func() error {
			return errorOf(core.ConfigMaps("shop").Get(ctx, "of-x", get))
		}},
		{"read a ConfigMap of another node's pod", false, func() error {
			return errorOf(core.ConfigMaps("shop").Get(ctx, "of-y", get))
		}},
		{"read its pod", true, func() error { return errorOf(core.Pods("shop").Get(ctx, "on-x", get)) }},
		{"read another node's pod", false, func() error { return errorOf(core.Pods("shop").Get(ctx, "on-y", get)) }},
		{"list its pods", true, func() error {
			return errorOf(core.Pods("").List(ctx, fieldSelector("spec.nodeName=x")))
		}},
		{"list all pods", false, func() error { return errorOf(core.Pods("").List(ctx, fieldSelector(""))) }},
		{"list another node's pods", false, func() error {
			return errorOf(core.Pods("").List(ctx, fieldSelector("spec.nodeName=y")))
		}},
		{"list pods with a negative node selector", false, func() error {
			return errorOf(core.Pods("").List(ctx,
				fieldSelector("spec.nodeName!=y")))
		}},
		{"list nodes", true, func() error {
			return errorOf(core.Nodes().List(ctx,
				metav1.ListOptions{}))
		}},
		{"read another node", false, func() error { return errorOf(core.Nodes().Get(ctx, "y", get)) }},
		{"watch services", true, func() error { return errorOf(core.Services("").List(ctx, fieldSelector(""))) }},
		{"read roles", false, func() error {
			return errorOf(s.x.RbacV1().ClusterRoles().List(ctx, fieldSelector("")))
		}},
		{"update another node's lease", false, func() error {
			return errorOf(s.x.CoordinationV1().Leases("kube-system").Get(ctx, "kube-scheduler", get))
		}},
	}
}

// podWriteAttempts returns write operations on pods.
func (s *twoNodeCluster) podWriteAttempts(ctx context.Context) []attempt {
	core := s.x.CoreV1()
	status := func(pod, patch string) error {
		return errorOf(core.Pods("shop").Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch),
			metav1.PatchOptions{},
			"status"))
	}
	return []attempt{
		{"write the status of its pod", true, func() error { return status("on-x", `{"status":{"phase":"Pending"}}`) }},
		{"write the status of another node's pod", false, func() error {
			return status("on-y", `{"status":{"phase":"Failed"}}`)
		}},
		{"label its pod through the status", false, func() error {
			return status("on-x", `{"metadata":{"labels":{"a":"b"}}}`)
		}},
		{"delete another node's pod", false, func() error {
			return core.Pods("shop").Delete(ctx, "on-y",
				metav1.DeleteOptions{})
		}},
		{"exec in a pod", false, func() error {
			return core.RESTClient().Post().AbsPath("/api/v1/namespaces/shop/pods/on-x/exec").Param("command",
				"id").Do(ctx).Error()
		}},
	}
}

// mirrorPodAttempts returns dry-run creations of mirror pods.
func (s *twoNodeCluster) mirrorPodAttempts(t *testing.T) []attempt {
	ctx := t.Context()
	self, err := s.x.CoreV1().Nodes().Get(ctx, "x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mirror := func(change func(*corev1.Pod)) func() error {
		yes := true
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "file-x", Namespace: "shop", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "1"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "x", UID: self.UID,
					Controller: &yes}},
			},
			Spec: corev1.PodSpec{NodeName: "x", Containers: []corev1.Container{{Name: "main", Image: "example/web"}}},
		}
		change(pod)
		return func() error {
			return errorOf(s.x.CoreV1().Pods("shop").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{"All"}}))
		}
	}
	return []attempt{
		{"create a pod", false, mirror(func(p *corev1.Pod) { p.Annotations = nil })},
		{"create a mirror pod", true, mirror(func(*corev1.Pod) {})},
		{"create a mirror pod on another node", false, mirror(func(p *corev1.Pod) { p.Spec.NodeName = "y" })},
		{"create a mirror pod without an owner", false, mirror(func(p *corev1.Pod) { p.OwnerReferences = nil })},
		{"create a mirror pod with another node UID", false,
			mirror(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" })},
		{"create a mirror pod with a secret", false, mirror(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
					SecretName: "of-y"}}}}
		})},
		{"create a mirror pod with a service account", false,
			mirror(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "app" })},
	}
}

// tokenAttempts returns token requests.
func (s *twoNodeCluster) tokenAttempts(t *testing.T) []attempt {
	ctx := t.Context()
	requestToken := func(account, pod string, audiences ...string) func() error {
		spec := authenticationv1.TokenRequestSpec{Audiences: audiences}
		if pod != "" {
			got, err := s.Client.CoreV1().Pods("shop").Get(ctx, pod, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod,
				UID: got.UID}
		}
		return func() error {
			return errorOf(s.x.CoreV1().ServiceAccounts("shop").CreateToken(ctx, account,
				&authenticationv1.TokenRequest{
					Spec: spec}, metav1.CreateOptions{}))
		}
	}
	return []attempt{
		{"get a token for its pod", true, requestToken("app", "on-x")},
		{"get a token for another node's pod", false, requestToken("app", "on-y")},
		{"get a token without a pod", false, requestToken("app", "")},
		{"get a token of a service account that its pod does not use", false, requestToken("other", "on-x")},
		{"get a token for an audience that the pod does not request", false, requestToken("app", "on-x", "vault")},
	}
}

// nodeAttempts returns operations on nodes and leases.
func (s *twoNodeCluster) nodeAttempts(ctx context.Context) []attempt {
	nodes := s.x.CoreV1().Nodes()
	patch := func(node, patch string, sub ...string) func() error {
		return func() error {
			return errorOf(nodes.Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{},
				sub...))
		}
	}
	lease := func(name string) func() error {
		return func() error {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
			return errorOf(s.x.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, l,
				metav1.CreateOptions{}))
		}
	}
	return []attempt{
		{"set its zone label", true, patch("x", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"a"}}}`)},
		{"set other labels", true, patch("x", `{"metadata":{"labels":{"example.com/rack":"7"}}}`)},
		{"set a node-restriction label", false,
			patch("x", `{"metadata":{"labels":{"node-restriction.kubernetes.io/trusted":"true"}}}`)},
		{"set a role label", false, patch("x", `{"metadata":{"labels":{"node-role.kubernetes.io/control":""}}}`)},
		{"set labels through its status", false,
			patch("x", `{"metadata":{"labels":{"node-restriction.kubernetes.io/trusted":"true"}}}`, "status")},
		{"taint itself", false, patch("x", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`)},
		{"set an owner reference on itself", false,
			patch("x", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`)},
		{"cordon itself", true, patch("x", `{"spec":{"unschedulable":true}}`)},
		{"write its status", true, patch("x", `{"status":{"phase":""}}`, "status")},
		{"change another node", false, patch("y", `{"spec":{"unschedulable":true}}`)},
		{"write another node's status", false, patch("y", `{"status":{"phase":""}}`, "status")},
		{"delete itself", false, func() error { return nodes.Delete(ctx, "x", metav1.DeleteOptions{}) }},
		{"register another node", false, func() error {
			return errorOf(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "z"}},
				metav1.CreateOptions{}))
		}},
		{"create its lease", true, lease("x")},
		{"create another node's lease", false, lease("y")},
	}
}

// TestNodeCannotChangePodCIDR checks that a node cannot set or remove its pod CIDR, neither at
// registration nor later, because other nodes route the pod CIDR.
func TestNodeCannotChangePodCIDR(t *testing.T) {
	t.Parallel()
	s := SharedWithoutControllers(t) // without allocation of pod CIDRs
	ctx, name := t.Context(), s.Namespace+"-ranged"
	nodes := s.clientAs(t, "system:node:"+name, "system:nodes").CoreV1().Nodes()
	register := func(ranges ...string) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
		if len(ranges) > 0 {
			n.Spec.PodCIDR = ranges[0]
		}
		return errorOf(nodes.Create(ctx, n, metav1.CreateOptions{}))
	}
	write := func(by typedcorev1.NodeInterface, spec string) error {
		return errorOf(by.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{}))
	}
	const some = `{"podCIDR":"10.42.9.0/24","podCIDRs":["10.42.9.0/24"]}`
	for _, row := range []struct {
		what    string
		allowed bool
		err     error
	}{
		{"registers with a pod CIDR", false, register("10.42.9.0/24")},
		{"registers with a pod CIDR of each family", false, register("10.42.9.0/24", "fd00::/64")},
		{"registers", true, register()},
		{"sets a pod CIDR", false, write(nodes, some)},
		{"sets podCIDR only", false, write(nodes, `{"podCIDR":"10.42.9.0/24"}`)},
		{"writes other fields", true, write(nodes, `{"unschedulable":true}`)},
		{"gets a pod CIDR from the administrator", true, write(s.Client.CoreV1().Nodes(), some)},
		{"writes other fields and its pod CIDR", true, write(nodes, `{"unschedulable":false}`)},
	} {
		if row.allowed && row.err != nil || !row.allowed && !apierrors.IsForbidden(row.err) {
			t.Errorf("node %s: got %v, want allowed: %v", row.what, row.err, row.allowed)
		}
	}
}

// TestReadOnlyUserCannotExec checks that exec requires the permission to create pods/exec, although a
// WebSocket starts with a GET request.
func TestReadOnlyUserCannotExec(t *testing.T) {
	t.Parallel()
	s := sharedTwoNodeCluster(t)
	subresources := []string{"exec", "attach", "portforward"}
	for name, verbs := range map[string]string{"reader": "get", "operator": "get,create"} {
		s.Kubectl(t, "create", "role", name, "-n", "shop", "--verb="+verbs,
			"--resource=pods/exec,pods/attach,pods/portforward")
		s.Kubectl(t, "create", "rolebinding", name, "-n", "shop", "--role="+name, "--user="+name)
	}
	get := func(user, subresource string) error {
		get := s.clientAs(t, user).CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/shop/pods/on-x/" +
			subresource)
		return get.Param("command", "id").Param("stdout", "true").Param("ports", "80").Do(t.Context()).Error()
	}
	for _, subresource := range subresources {
		// The node has no address: an authorized user gets ServiceUnavailable.
		waitForResult(t, "user with create permission for pods/"+subresource, func() string {
			return fmt.Sprint(apierrors.IsServiceUnavailable(get("operator", subresource)))
		}, "true")
		waitForResult(t, "user with get permission for pods/"+subresource, func() string {
			err := get("reader", subresource)
			return fmt.Sprint(apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "cannot get"))
		}, "true")
	}
}

// TestServerIdentityIsForNodesOnly checks that the server's client certificate for nodes has no
// permissions on the server itself. A node with the server's address in its status, or a user of that
// node's API, cannot use it to send requests to the server.
func TestServerIdentityIsForNodesOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	withDataDir := func(c *control.Config) { c.DataDir = dir }
	s := Start(t, withDataDir)
	s.useLegacyIdentity(t, dir)
	s.Stop(t)
	s = Start(t, withDataDir)
	if cert := certificateIn(t, filepath.Join(dir, "pki", "node-client.crt")); len(cert.Subject.Organization) > 0 {
		t.Errorf("client certificate for nodes: got subject %s, want no organization", cert.Subject)
	}
	ctx, x := t.Context(), s.clientAs(t, "system:node:x", "system:nodes")
	if _, err := x.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	isAllowed := func(verb, resource, sub string) func() string {
		return func() string {
			r, err := x.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: pki.KubeletClientUser, Groups: []string{"system:authenticated"},
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1",
						Resource:    resource,
						Subresource: sub, Name: "x"},
				}}, metav1.CreateOptions{})
			if err != nil {
				return err.Error()
			}
			return fmt.Sprint(r.Status.Allowed)
		}
	}
	for _, sub := range []string{"proxy", "stats", "log", "metrics", "pods", "configz", "healthz"} {
		waitForResult(t, "permission to create nodes/"+sub, isAllowed("create", "nodes", sub), "true")
	}
	waitForResult(t, "permission to get secrets", isAllowed("get", "secrets", ""), "false")

	u, err := url.Parse(s.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}],`+
		`"daemonEndpoints":{"kubeletEndpoint":{"Port":%s}}}}`, u.Hostname(), u.Port())
	if _, err := x.CoreV1().Nodes().Patch(ctx, "x", types.StrategicMergePatchType, []byte(status),
		metav1.PatchOptions{},
		"status"); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "create", "clusterrole", "node-proxy", "--verb=get,create", "--resource=nodes/proxy")
	s.Kubectl(t, "create", "clusterrolebinding", "node-proxy", "--clusterrole=node-proxy", "--user=probe")
	probe := s.clientAs(t, "probe")
	for _, path := range []string{"api/v1/secrets", "api/v1/nodes", "api/v1/nodes/x/proxy/healthz", "api", "version",
		"metrics"} {
		waitForResult(t, "response of the node proxy for "+path, func() string {
			code := 0
			text, _ := probe.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/x/proxy/" +
				path).Do(ctx).StatusCode(&code).Raw()
			if code < http.StatusInternalServerError || !strings.Contains(string(text), "not that of node") {
				return fmt.Sprintf("status %d: %.200s", code, text)
			}
			return "rejected certificate"
		}, "rejected certificate")
	}
	// If a request reached the server, its identity for nodes would have no permission.
	asNodeClient := s.clientWith(t, func(c *restclient.Config) {
		c.CertFile = filepath.Join(dir, "pki", "node-client.crt")
		c.KeyFile = filepath.Join(dir, "pki", "node-client.key")
	})
	if _, err := asNodeClient.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("list of secrets with the server's identity for nodes: got %v, want Unauthorized", err)
	}
}

// useLegacyIdentity writes the client certificate for nodes of earlier releases to a data directory. Its
// group is system:masters.
func (s *Server) useLegacyIdentity(t *testing.T, dir string) {
	t.Helper()
	s.Kubectl(t, "delete", "clusterrolebinding", "system:kubelet-api-admin")
	cert, key, err := s.Authority.Issue(pki.Subject{Name: pki.KubeletClientUser, Groups: []string{"system:masters"},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"node-client.crt": cert, "node-client.key": key} {
		if err := os.WriteFile(filepath.Join(dir, "pki", name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// certificateIn returns the certificate in a file.
func certificateIn(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s contains no PEM block", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestNodeCannotImpersonateServer issues serving certificates for the names and addresses of the server
// to nodes, which may run on the same host. Clients must not accept such a certificate as the server's.
// The server must accept it as the node's.
func TestNodeCannotImpersonateServer(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	trust := x509.NewCertPool() // as in kubeconfigs and pods
	if !trust.AppendCertsFromPEM(s.Config.CAData) {
		t.Fatal("the administrator's kubeconfig has no CA")
	}
	names := []string{"localhost", "kubernetes.default.svc", "127.0.0.1", "10.43.0.1"}
	for _, node := range []string{"impersonator", "kubernetes.default.svc"} {
		pair := s.issueServingCertificate(t, node, names)
		agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w,
				"as ", node)
		}))
		agent.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: s.Authority.Pool(),
			ClientAuth: tls.RequireAndVerifyClientCert}
		agent.Config.ErrorLog = log.New(io.Discard, "", 0)
		agent.StartTLS()
		t.Cleanup(agent.Close)
		for _, name := range names {
			conn, err := tls.Dial("tcp", agent.Listener.Addr().String(), &tls.Config{RootCAs: trust, ServerName: name})
			if err == nil {
				conn.Close()
			}
			if unknown := (x509.UnknownAuthorityError{}); !errors.As(err, &unknown) {
				t.Errorf("connection to node %s as %s: got %v, want UnknownAuthorityError", node, name, err)
			}
		}
		_, port, _ := net.SplitHostPort(agent.Listener.Addr().String())
		s.Kubectl(t, "patch", "node", node, "--subresource=status", "-p",
			`{"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":`+port+`}}}}`)
		if got := s.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+node+"/proxy/"); got != "as "+node {
			t.Errorf("response of node %s: got %q", node, got)
		}
	}
}

// issueServingCertificate registers a node with the given names and addresses, requests a serving
// certificate for it, and returns the certificate.
func (s *Server) issueServingCertificate(t *testing.T, node string, names []string) tls.Certificate {
	t.Helper()
	ctx, client := t.Context(), s.clientAs(t, "system:node:"+node, "system:nodes")
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{
		"system:nodes"}}}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
				Address: name})
		} else {
			template.DNSNames = append(template.DNSNames, name)
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalDNS,
				Address: name})
		}
	}
	if _, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx,
		&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeletServingSignerName,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature,
					certificatesv1.UsageServerAuth},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var pair tls.Certificate
	eventually(t, "the certificate of node "+node, func() (bool, string) {
		r, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, request.Name, metav1.GetOptions{})
		if err != nil || len(r.Status.Certificate) == 0 {
			return false, fmt.Sprint(r.Status.Conditions, err)
		}
		block, _ := pem.Decode(r.Status.Certificate)
		pair = tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
		return true, ""
	})
	return pair
}
