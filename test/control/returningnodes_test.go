package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"berth/control/controllers"
	"berth/control/pki"
	"berth/control/tokens"
)

// machineOf returns the machine ID of a node's host.
func machineOf(node string) string { return "machine-of-" + node }

// createNode creates a Node that does not run, with the machine ID of its host.
func (s *Server) createNode(t *testing.T, name string) {
	t.Helper()
	node, err := s.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"status":{"nodeInfo":{"machineID":%q}}}`, machineOf(node.Name))
	if _, err := s.Client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// recordIssued sets the record of the last certificate of a node.
func (s *Server) recordIssued(t *testing.T, node, credential string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, controllers.IssuedCertificateAnnotation,
		credential)
	if _, err := s.Client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// issuedTo returns the record of the last certificate of a node.
func (s *Server) issuedTo(t *testing.T, node string) string {
	t.Helper()
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Annotations[controllers.IssuedCertificateAnnotation]
}

// nodeCSRResult is the decision on a request for a client certificate of a node.
type nodeCSRResult struct {
	reason      string
	certificate []byte // if approved
}

// requestNodeCertificate requests a client certificate for a node and waits for the decision. An empty machine ID is
// omitted.
func (s *Server) requestNodeCertificate(t *testing.T, by kubernetes.Interface, node, machine string) nodeCSRResult {
	t.Helper()
	name, err := submitNodeCSR(t, by, node, machine)
	if err != nil {
		return nodeCSRResult{reason: err.Error()}
	}
	return s.waitForDecision(t, name)
}

// submitNodeCSR creates a request for a client certificate of a node.
func submitNodeCSR(t *testing.T, by kubernetes.Interface, node, machine string) (name string, err error) {
	t.Helper()
	r := requestOf(t, newKey(t), certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:"+node,
		"system:nodes")
	if machine != "" {
		r.Annotations = map[string]string{controllers.MachineIDAnnotation: machine}
	}
	if r, err = by.CertificatesV1().CertificateSigningRequests().Create(t.Context(), r,
		metav1.CreateOptions{}); err != nil {
		return "", err
	}
	return r.Name, nil
}

// waitForDecision waits until a request is denied, or approved and signed.
func (s *Server) waitForDecision(t *testing.T, name string) (result nodeCSRResult) {
	t.Helper()
	eventually(t, "decision on request "+name, func() (bool, string) {
		r, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range r.Status.Conditions {
			result = nodeCSRResult{c.Reason, r.Status.Certificate}
			if c.Type == certificatesv1.CertificateDenied || len(r.Status.Certificate) > 0 {
				return true, ""
			}
		}
		return false, fmt.Sprint(r.Status.Conditions)
	})
	return result
}

// TestReturningNodeNeedsLastCertificate requests certificates with expired ones: with an older one, with the last
// used one, and with the last one, while the lease of the node is alive and afterwards.
func TestReturningNodeNeedsLastCertificate(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx, name := t.Context(), s.Namespace+"-returning"
	s.createNode(t, name)
	expired := func() certificateClient { return s.clientWithExpiredCertificate(t, s.Authority, name, time.Hour) }
	older, used, last := expired(), expired(), expired()
	s.recordIssued(t, name, last.credential)
	leases := s.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	hour, longAgo := int32(3600), metav1.NewMicroTime(time.Now().Add(-24*time.Hour))
	lease, err := leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			controllers.UsedCertificateAnnotation: used.credential}},
		Spec: coordinationv1.LeaseSpec{LeaseDurationSeconds: &hour, RenewTime: &longAgo},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	renew := func(by certificateClient, machine string) func() string {
		return func() string { return s.requestNodeCertificate(t, by, name, machine).reason }
	}
	waitForResult(t, "renewal with the last certificate", renew(last, machineOf(name)), "AutoApproved")
	waitForResult(t, "renewal with the last used certificate", renew(used, machineOf(name)), "AutoApproved")
	for what, f := range map[string]func() string{
		"with an older certificate":                                 renew(older, machineOf(name)),
		"with a certificate that was replaced before its first use": renew(last, machineOf(name)),
	} {
		waitForResult(t, "renewal "+what, f, "CertificateSuperseded")
	}
	for what, machine := range map[string]string{"from another host": "other", "without a machine ID": ""} {
		if got := renew(used, machine)(); got != "OtherMachine" {
			t.Errorf("renewal %s: got %s, want OtherMachine", what, got)
		}
	}

	now := metav1.NewMicroTime(time.Now())
	lease.Spec.RenewTime = &now
	if lease, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The controller may have decided the first requests before it observed the lease.
	var waiting string
	eventually(t, "a request that waits for the end of the lease", func() (bool, string) {
		if waiting, err = submitNodeCSR(t, used, name, machineOf(name)); err != nil {
			return false, err.Error()
		}
		// A later request of another machine shows that the controller has processed the first one.
		renew(used, "other")()
		r, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, waiting, metav1.GetOptions{})
		return err == nil && len(r.Status.Conditions) == 0, fmt.Sprint(r.Status.Conditions, err)
	})
	lease.Spec.RenewTime = &longAgo
	if _, err = leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	result := s.waitForDecision(t, waiting)
	if result.reason != "AutoApproved" {
		t.Errorf("renewal after the end of the lease: got %s, want AutoApproved", result.reason)
	}
	if id, err := pki.CredentialID(result.certificate); err != nil || s.issuedTo(t, name) != id {
		t.Errorf("got last certificate %s, want %s, %v", s.issuedTo(t, name), id, err)
	}
}

// TestNodeCertificatesAreRecorded registers a node with its first certificate, which renews its lease and its
// certificate. The node cannot change the records.
func TestNodeCertificatesAreRecorded(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	ctx, name := t.Context(), s.Namespace+"-recorded"
	node := func() certificateClient {
		return s.clientWithIssuedCertificate(t, s.Authority, pki.Subject{Name: "system:node:" + name,
			Groups: []string{"system:nodes"}})
	}
	first, stranger := node(), node()
	forged := map[string]string{controllers.IssuedCertificateAnnotation: "X509SHA256=forged",
		controllers.UsedCertificateAnnotation: "X509SHA256=forged"}
	if _, err := first.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: forged}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.issuedTo(t, name); got != first.credential {
		t.Errorf("after the registration: got last certificate %q, want %q", got, first.credential)
	}
	forge := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"X509SHA256=forged"}}}`,
		controllers.IssuedCertificateAnnotation)
	for _, sub := range [][]string{nil, {"status"}} {
		if _, err := first.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, forge, metav1.PatchOptions{},
			sub...); err != nil {
			t.Error(err)
		}
		if got := s.issuedTo(t, name); got != first.credential {
			t.Errorf("after a change by the node: got last certificate %q, want %q", got, first.credential)
		}
	}
	if _, err := first.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: forged}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	renewLease := func(by kubernetes.Interface) string {
		patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))
		l, err := by.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Annotations[controllers.UsedCertificateAnnotation]
	}
	if got := renewLease(first); got != first.credential {
		t.Errorf("got used certificate %q, want %q", got, first.credential)
	}
	result := s.requestNodeCertificate(t, first, name, machineOf(name))
	second, err := pki.CredentialID(result.certificate)
	if err != nil || s.issuedTo(t, name) != second {
		t.Fatalf("renewal: got %s, last certificate %q, want %q, %v", result.reason, s.issuedTo(t, name), second, err)
	}
	waitForResult(t, "used certificate after a renewal with an unknown one", func() string {
		return renewLease(stranger)
	}, first.credential)
}

// TestJoinTokenCannotTakeNameOfNode joins with the name of an existing node: with a token, and with one that the
// operator has created for this node.
func TestJoinTokenCannotTakeNameOfNode(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	name := s.Namespace + "-existing"
	s.createNode(t, name)
	out, err := runControl(t, "token", "create", "--data-dir", s.DataDir)
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	other := s.clientWithToken(t, tokenIn(t, out))
	if got := s.requestNodeCertificate(t, other, name, machineOf(name)).reason; got != "NodeExists" {
		t.Errorf("join with a token: got %s, want NodeExists", got)
	}
	if out, err = runControl(t, "token", "create", "--data-dir", s.DataDir, "--for", name); err != nil {
		t.Fatalf("token create --for: %v\n%s", err, out)
	}
	token := tokenIn(t, out)
	list, err := runControl(t, "token", "list", "--data-dir", s.DataDir)
	if id, _, _ := strings.Cut(token, "."); err != nil || !strings.Contains(list, id) || !strings.Contains(list, name) {
		t.Errorf("token list: %v\n%s", err, list)
	}
	consented := s.clientWithToken(t, token)
	if _, err := submitNodeCSR(t, consented, name+"-2", "new"); !apierrors.IsForbidden(err) {
		t.Errorf("join as another node: got %v, want Forbidden", err)
	}
	if got := s.requestNodeCertificate(t, consented, name, "new").reason; got != "AutoApproved" {
		t.Errorf("join with a token for the node: got %s, want AutoApproved", got)
	}
	if out, err := runControl(t, "token", "create", "--data-dir", s.DataDir, "--for", "Not A Node"); err == nil ||
		!strings.Contains(out, "is not a node name") {
		t.Errorf("token create --for with an invalid name: got %v: %s", err, out)
	}
}

// tokenIn returns the token of a printed join command.
func tokenIn(t *testing.T, out string) string {
	t.Helper()
	m := joinCommand.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("got no join command: %s", out)
	}
	if _, _, ok := tokens.ParseBootstrapToken(m[2] + "." + m[3]); !ok {
		t.Fatalf("got no token in: %s", out)
	}
	return m[2] + "." + m[3]
}
