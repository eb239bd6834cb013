package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitForDeletion waits until kubectl no longer finds an object.
func waitForDeletion(t testing.TB, s *Server, args ...string) {
	t.Helper()
	eventually(t, strings.Join(args, " ")+" to be deleted", func() (bool, string) {
		out, err := s.TryKubectl(t, "", append([]string{"get", "-o", "yaml"}, args...)...)
		return err != nil && strings.Contains(out, "NotFound"), out
	})
}

// waitForOutput waits until kubectl prints the text want.
func waitForOutput(t testing.TB, s *Server, want string, args ...string) {
	t.Helper()
	eventually(t, strings.Join(args, " ")+" to print "+want, func() (bool, string) {
		out, err := s.TryKubectl(t, "", args...)
		return err == nil && strings.TrimSpace(out) == want, out
	})
}

// TestNamespaceLifecycle checks the objects in a new namespace and the order of its deletion.
func TestNamespaceLifecycle(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	s.Kubectl(t, "create", "namespace", "shop")
	waitForOutput(t, s, "default", "-n", "shop", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	waitForOutput(t, s, strings.TrimSpace(string(s.Authority.PEM())), "-n", "shop", "get", "cm", "kube-root-ca.crt",
		"-o",
		`jsonpath={.data.ca\.crt}`)
	s.Kubectl(t, "-n", "shop", "delete", "sa", "default")
	waitForOutput(t, s, "default", "-n", "shop", "get", "sa", "default", "-o", "jsonpath={.metadata.name}")
	s.Apply(t, podYAML("web", "1m", ""), "-n", "shop")
	s.Kubectl(t, "-n", "shop", "create", "secret", "generic", "s", "--from-literal=a=b")
	s.Kubectl(t, "-n", "shop", "create", "deployment", "d", "--image=x")
	s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: held, namespace: shop, finalizers: `+
		`[example.com/hold]}}`)
	s.Kubectl(t, "-n", "shop", "patch", "pod", "web", "-p", `{"metadata":{"finalizers":["example.com/pod-hold"]}}`)
	s.Kubectl(t, "delete", "namespace", "shop", "--wait=false")
	waitForOutput(t, s, "Terminating", "get", "ns", "shop", "-o", "jsonpath={.status.phase}")
	waitForOutput(t, s, "Some resources are remaining: pods has 1 resource instances",
		"get", "ns", "shop", "-o", `jsonpath={.status.conditions[?(@.type=="NamespaceContentRemaining")].message}`)
	if out, err := s.TryKubectl(t, "", "-n", "shop", "get", "cm/kube-root-ca.crt", "secret/s", "sa/default", "-o",
		"name"); err != nil {
		t.Errorf("other objects were deleted before the pods: %s (%v)", out, err)
	}
	s.Kubectl(t, "-n", "shop", "patch", "pod", "web", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	waitForOutput(t, s, "Some content in the namespace has finalizers remaining: example.com/hold in 1 "+
		"resource instances",
		"get", "ns", "shop", "-o", `jsonpath={.status.conditions[?(@.type=="NamespaceFinalizersRemaining")].message}`)
	if out, err := s.TryKubectl(t, "", "-n", "shop", "get", "pod,secret,deployment,sa", "-o", "name"); err != nil ||
		out != "" {
		t.Errorf("objects of the namespace still exist: %s (%v)", out, err)
	}
	s.Kubectl(t, "-n", "shop", "patch", "cm", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	waitForDeletion(t, s, "ns", "shop")
}

// TestGarbageCollectionPolicies deletes an owner with each of the three propagation policies.
func TestGarbageCollectionPolicies(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	createOwners := func(name string) {
		s.Kubectl(t, "create", "cm", name)
		uid := s.Kubectl(t, "get", "cm", name, "-o", "jsonpath={.metadata.uid}")
		s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: %s-child, ownerReferences: `+
			`[{apiVersion: v1, kind: ConfigMap, name: %s, uid: %s, blockOwnerDeletion: true}]}}`, name, name, uid))
		child := s.Kubectl(t, "get", "secret", name+"-child", "-o", "jsonpath={.metadata.uid}")
		s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: %s-grandchild, ownerReferences: `+
			`[{apiVersion: v1, kind: Secret, name: %s-child, uid: %s}]}}`, name, name, child))
	}
	createOwners("a")
	s.Kubectl(t, "delete", "cm", "a", "--cascade=background")
	waitForDeletion(t, s, "secret", "a-child")
	waitForDeletion(t, s, "cm", "a-grandchild")

	createOwners("b")
	s.Kubectl(t, "patch", "secret", "b-child", "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	s.Kubectl(t, "delete", "cm", "b", "--cascade=foreground", "--wait=false")
	waitForOutput(t, s, "b-child", "get", "secret", "b-child", "-o", "go-template={{if "+
		".metadata.deletionTimestamp}}{{.metadata.name}}{{end}}")
	if out := s.Kubectl(t, "get", "cm", "b", "-o", "jsonpath={.metadata.finalizers}"); !strings.Contains(out,
		"foregroundDeletion") {
		t.Errorf("owner with a blocking dependent: got finalizers %s, want foregroundDeletion", out)
	}
	s.Kubectl(t, "patch", "secret", "b-child", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	waitForDeletion(t, s, "secret", "b-child")
	waitForDeletion(t, s, "cm", "b")
	waitForDeletion(t, s, "cm", "b-grandchild")

	createOwners("c")
	s.Kubectl(t, "delete", "cm", "c", "--cascade=orphan")
	waitForDeletion(t, s, "cm", "c")
	if out := s.Kubectl(t, "get", "secret", "c-child", "-o", "jsonpath={.metadata.ownerReferences}"); out != "" {
		t.Errorf("orphan: got owner references %s, want none", out)
	}
	s.Kubectl(t, "get", "cm", "c-grandchild")

	s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: late, ownerReferences: [{apiVersion: v1, kind: `+
		`Secret, name: never, uid: no-such-uid}]}}`)
	waitForDeletion(t, s, "cm", "late")
	s.Apply(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: foreign, ownerReferences: [{apiVersion: `+
		`example.com/v1, kind: Widget, name: w, uid: w}]}}`)
	uid := s.Kubectl(t, "get", "cm", "c-grandchild", "-o", "jsonpath={.metadata.uid}")
	s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: shared, ownerReferences: `+
		`[{apiVersion: v1, kind: ConfigMap, name: deleted, uid: deleted}, {apiVersion: v1, kind: ConfigMap, name: `+
		`c-grandchild, uid: %s}]}}`, uid))
	waitForOutput(t, s, "c-grandchild", "get", "cm", "shared", "-o", "jsonpath={.metadata.ownerReferences[*].name}")
	s.Kubectl(t, "get", "cm", "foreign")
}

// TestJobDeletionPropagation deletes jobs with the policy of kubectl, which is background, and with the
// default policy, which orphans the pods. The job controller does not manage the jobs.
func TestJobDeletionPropagation(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	createJob := func(name string) {
		s.Apply(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: `+name+
			`}, spec: {managedBy: example.com/queue, template: {spec: {restartPolicy: Never, containers: [{name: c,
				image: i}]}}}}`)
		uid := s.Kubectl(t, "get", "job", name, "-o", "jsonpath={.metadata.uid}")
		s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s-pod, ownerReferences: [{apiVersion: `+
			`batch/v1, kind: Job, name: %s, uid: %s, blockOwnerDeletion: true, controller: true}]}, spec: `+
			`{schedulerName: none, containers: [{name: c, image: i}]}}`, name, name, uid))
	}
	createJob("background")
	s.Kubectl(t, "delete", "job", "background")
	waitForDeletion(t, s, "pod", "background-pod")

	createJob("default")
	s.Kubectl(t, "delete", "--raw", "/apis/batch/v1/namespaces/"+s.Namespace+"/jobs/default")
	waitForDeletion(t, s, "job", "default")
	if out := s.Kubectl(t, "get", "pod", "default-pod", "-o", "jsonpath={.metadata.ownerReferences}"); out != "" {
		t.Errorf("orphaned pod: got owner references %s, want none", out)
	}
}

// TestCircularOwnersAreDeleted deletes owners that block each other with foreground propagation.
func TestCircularOwnersAreDeleted(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	circle := func(names ...string) {
		for _, name := range names {
			s.Kubectl(t, "create", "cm", name)
		}
		for i, name := range names {
			owner := names[(i+1)%len(names)]
			uid := s.Kubectl(t, "get", "cm", owner, "-o", "jsonpath={.metadata.uid}")
			s.Kubectl(t, "patch", "cm", name, "--type=merge", "-p", fmt.Sprintf(
				`{"metadata":{"ownerReferences":[`+
					`{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"blockOwnerDeletion":true}]}}`,
				owner, uid))
		}
	}
	for _, r := range []struct{ names, deleted []string }{
		{[]string{"two-a", "two-b"}, []string{"two-a"}},
		{[]string{"both-a", "both-b"}, []string{"both-a", "both-b"}},
		{[]string{"three-a", "three-b", "three-c"}, []string{"three-b"}},
		{[]string{"itself"}, []string{"itself"}},
	} {
		circle(r.names...)
		s.Kubectl(t, append([]string{"delete", "cm", "--cascade=foreground", "--wait=false"}, r.deleted...)...)
		for _, name := range r.names {
			waitForDeletion(t, s, "cm", name)
		}
	}

	// Dependents outside of the circle still block.
	circle("held-a", "held-b")
	uid := s.Kubectl(t, "get", "cm", "held-a", "-o", "jsonpath={.metadata.uid}")
	s.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: held-child, finalizers: `+
		`[example.com/hold], ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: held-a, uid: %s, `+
		`blockOwnerDeletion: true}]}}`, uid))
	s.Kubectl(t, "delete", "cm", "held-a", "--cascade=foreground", "--wait=false")
	waitForDeletion(t, s, "cm", "held-b")
	if out := s.Kubectl(t, "get", "cm", "held-a", "-o", "jsonpath={.metadata.finalizers}"); !strings.Contains(out,
		"foregroundDeletion") {
		t.Errorf("owner with a blocking dependent: got finalizers %s, want foregroundDeletion", out)
	}
	s.Kubectl(t, "patch", "secret", "held-child", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	waitForDeletion(t, s, "secret", "held-child")
	waitForDeletion(t, s, "cm", "held-a")
}

// TestCertificatesAreApprovedAndSigned approves a request with kubectl and checks the certificate.
func TestCertificatesAreApprovedAndSigned(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:        pkix.Name{CommonName: "jane", Organization: []string{"dev"}},
		EmailAddresses: []string{"jane@example.com"},
		DNSNames:       []string{"localhost"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	s.Apply(t, fmt.Sprintf(`{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest,
metadata: {name: jane},
spec: {signerName: kubernetes.io/kube-apiserver-client, expirationSeconds: 3600, usages: [client auth], request: %s}}`,
		base64.StdEncoding.EncodeToString(text)))
	s.Kubectl(t, "certificate", "approve", "jane")
	var cert *x509.Certificate
	eventually(t, "the certificate", func() (bool, string) {
		csr, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "jane", metav1.GetOptions{})
		if err != nil || len(csr.Status.Certificate) == 0 {
			return false, fmt.Sprint(csr, err)
		}
		block, _ := pem.Decode(csr.Status.Certificate)
		cert, err = x509.ParseCertificate(block.Bytes)
		return err == nil, fmt.Sprint(err)
	})
	if _, err := cert.Verify(x509.VerifyOptions{Roots: s.Authority.Pool(), KeyUsages: []x509.ExtKeyUsage{
		x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if cert.Subject.CommonName != "jane" || cert.NotAfter.Sub(cert.NotBefore).Minutes() > 66 {
		t.Errorf("got certificate for %s, valid until %s", cert.Subject, cert.NotAfter)
	}
	if len(cert.EmailAddresses)+len(cert.DNSNames) > 0 {
		t.Errorf("got subject alternative names %v %v, want none", cert.EmailAddresses, cert.DNSNames)
	}
}

// TestQuotaAndDisruptionBudgetStatus creates and deletes objects and checks the status of their quota and
// disruption budget.
func TestQuotaAndDisruptionBudgetStatus(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "4")
	s.Apply(t, `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q}, spec: {hard: {pods: "5", requests.cpu: `+
		`"2", count/configmaps: "9", count/deployments.apps: "3"}}}`)
	s.Apply(t, `{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b}, spec: {minAvailable: 1, `+
		`selector: {matchLabels: {app: web}}}}`)
	s.Apply(t, podYAML("web", "500m", ""))
	s.Kubectl(t, "create", "cm", "one")
	waitForOutput(t, s, "1 500m", "get", "quota", "q", "-o",
		`jsonpath={.status.used.pods} {.status.used.requests\.cpu}`)
	// including kube-root-ca.crt
	waitForOutput(t, s, "2", "get", "quota", "q", "-o", `jsonpath={.status.used.count/configmaps}`)
	waitForOutput(t, s, "0 1 0", "get", "pdb", "b", "-o", "jsonpath={.status.currentHealthy} {.status.desiredHealthy} "+
		"{.status.disruptionsAllowed}")
	second := strings.ReplaceAll(podYAML("web2", "500m", ""), "app: web2", "app: web")
	s.Apply(t, second)
	for _, name := range []string{"web", "web2"} {
		waitForBinding(t, s, name)
		_, err := s.Client.CoreV1().Pods("default").Patch(t.Context(), name, "application/strategic-merge-patch+json",
			[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`),
			metav1.PatchOptions{},
			"status")
		if err != nil {
			t.Fatal(err)
		}
	}
	waitForOutput(t, s, "2 1 1", "get", "pdb", "b", "-o", "jsonpath={.status.currentHealthy} {.status.desiredHealthy} "+
		"{.status.disruptionsAllowed}")
	s.Kubectl(t, "delete", "pod", "web", "--force", "--grace-period=0")
	waitForOutput(t, s, "1 500m", "get", "quota", "q", "-o",
		`jsonpath={.status.used.pods} {.status.used.requests\.cpu}`)
	waitForOutput(t, s, "1 1 0", "get", "pdb", "b", "-o", "jsonpath={.status.currentHealthy} {.status.desiredHealthy} "+
		"{.status.disruptionsAllowed}")
}

// TestNodesAreTaintedByCondition cordons a node, makes it not ready, and checks its taints. Pods that do
// not tolerate the taints are evicted.
func TestNodesAreTaintedByCondition(t *testing.T) {
	t.Parallel()
	s := Start(t)
	addNode(t, s, "n1", "1")
	addNode(t, s, "n2", "1")
	waitForOutput(t, s, "10.42.0.0/24 10.42.1.0/24", "get", "nodes", "-o", "jsonpath={.items[*].spec.podCIDR}")
	s.Kubectl(t, "cordon", "n1")
	waitForOutput(t, s, "node.kubernetes.io/unschedulable", "get", "node", "n1", "-o", "jsonpath={.spec.taints[*].key}")
	s.Kubectl(t, "uncordon", "n1")
	waitForOutput(t, s, "", "get", "node", "n1", "-o", "jsonpath={.spec.taints[*].key}")
	s.Apply(t, podYAML("tolerating", "1m", "  nodeName: n1\n  tolerations: [{operator: Exists}]"))
	s.Apply(t, podYAML("evicted", "1m",
		"  nodeName: n1\n  tolerations: [{key: node.kubernetes.io/not-ready, operator: "+
			"Exists, effect: NoExecute, tolerationSeconds: 0}]"))
	s.updateNodeStatus(t, "n1", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	waitForOutput(t, s, "NoSchedule NoExecute", "get", "node", "n1", "-o", "jsonpath={.spec.taints[*].effect}")
	eventually(t, "deletion of the evicted pod", func() (bool, string) {
		out, err := s.TryKubectl(t, "", "get", "pod", "evicted", "-o", "jsonpath={.metadata.deletionTimestamp}")
		return err != nil || out != "", out
	})
	if out := s.Kubectl(t, "get", "pod", "tolerating", "-o", "jsonpath={.metadata.deletionTimestamp}"); out != "" {
		t.Errorf("pod that tolerates all taints was evicted")
	}
}
