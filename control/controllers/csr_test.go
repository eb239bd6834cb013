package controllers

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"berth/control/pki"
)

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t testing.TB) *pki.Authority {
	t.Helper()
	a, err := pki.Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// csrSpec describes a certificate signing request of a user.
type csrSpec struct {
	user, groups, signer, name, org string
	dns, emails                     []string
	ips                             []net.IP
	uris                            []*url.URL
	usages                          []certificatesv1.KeyUsage
	machine                         string
	credential, forNode             string // in the extra fields of the user
}

func (a csrSpec) build(t testing.TB) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: a.name}, DNSNames: a.dns,
		EmailAddresses: a.emails,
		IPAddresses:    a.ips, URIs: a.uris}
	if a.org != "" {
		template.Subject.Organization = strings.Split(a.org, ",")
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	usages := a.usages
	if usages == nil {
		usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
		if a.signer == certificatesv1.KubeletServingSignerName {
			usages[1] = certificatesv1.UsageServerAuth
		}
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr", UID: "csr", CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: a.signer,
			Username: a.user, Groups: strings.Split(a.groups, ","), Usages: usages,
		},
	}
	csr.Spec.Extra = map[string]certificatesv1.ExtraValue{}
	if a.credential != "" {
		csr.Spec.Extra[credentialIDKey] = certificatesv1.ExtraValue{a.credential}
	}
	if a.forNode != "" {
		csr.Spec.Extra[forNodeKey] = certificatesv1.ExtraValue{a.forNode}
	}
	if a.machine != "" {
		csr.Annotations = map[string]string{MachineIDAnnotation: a.machine}
	}
	return csr
}

const (
	clientSigner  = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
	bootstrapUser = "system:bootstrap:abcdef"
	// newReviewingClient grants a permission to the members of a group with its name.
	joiningGroups   = "may create nodeclient,system:authenticated"
	nodeGroups      = nodesGroup + ",may create selfnodeclient,system:authenticated"
	returningGroups = returningNodesGroup + ",may create selfnodeclient,system:authenticated"
)

// newReviewingClient returns a fake client that answers SubjectAccessReviews for the approval of
// requests.
func newReviewingClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		of := review.Spec.ResourceAttributes
		review.Status.Allowed = of.Group == "certificates.k8s.io" && of.Resource == "certificatesigningrequests" &&
			of.Name == "" && of.Namespace == "" &&
			slices.Contains(review.Spec.Groups, "may "+of.Verb+" "+of.Subresource)
		return true, review, nil
	})
	return client
}

func TestCSRApprovingNodeRequests(t *testing.T) {
	at := net.ParseIP("10.0.0.1")
	for _, row := range []struct {
		name string
		csr  csrSpec
		want string // "Approved", "Denied: part of the message", or "" for pending
	}{
		{"a new node", csrSpec{user: bootstrapUser, groups: joiningGroups, signer: clientSigner,
			name: "system:node:new",
			org:  nodesGroup}, "Approved"},
		{"a node renews its certificate", csrSpec{user: "system:node:here", groups: nodeGroups, signer: clientSigner,
			name: "system:node:here", org: nodesGroup}, "Approved"},
		{"a node requests the name of another node", csrSpec{user: "system:node:here", groups: nodeGroups,
			signer: clientSigner, name: "system:node:other", org: nodesGroup}, ""},
		{"a user with a node's name but without its group",
			csrSpec{user: "system:node:here", groups: "system:authenticated",
				signer: clientSigner, name: "system:node:here", org: nodesGroup}, ""},
		{"a bootstrap token without permission", csrSpec{user: bootstrapUser,
			groups: "system:bootstrappers,system:authenticated", signer: clientSigner, name: "system:node:new",
			org: nodesGroup},
			""},
		{"a node without permission to renew", csrSpec{user: "system:node:here", groups: nodesGroup,
			signer: clientSigner,
			name:   "system:node:here", org: nodesGroup}, ""},
		{"any user with permission", csrSpec{user: "jane", groups: joiningGroups, signer: clientSigner,
			name: "system:node:new", org: nodesGroup}, "Approved"},
		{"a returning node", csrSpec{user: returningNodePrefix + "lost", groups: returningGroups, signer: clientSigner,
			name: "system:node:lost", org: nodesGroup, machine: "m1", credential: "last"}, "Approved"},
		{"a returning node without permission", csrSpec{user: returningNodePrefix + "lost", groups: returningNodesGroup,
			signer: clientSigner, name: "system:node:lost", org: nodesGroup, machine: "m1", credential: "last"}, ""},
		{"a returning node with an older certificate", csrSpec{user: returningNodePrefix + "lost",
			groups: returningGroups, signer: clientSigner, name: "system:node:lost", org: nodesGroup, machine: "m1",
			credential: "older"}, "Denied: not the last one"},
		{"a returning node that is running", csrSpec{user: returningNodePrefix + "here", groups: returningGroups,
			signer: clientSigner, name: "system:node:here", org: nodesGroup, machine: "m1", credential: "last"}, ""},
		{"a returning node requests the name of another node", csrSpec{user: returningNodePrefix + "here",
			groups: returningGroups, signer: clientSigner, name: "system:node:lost", org: nodesGroup}, ""},
		{"a returning node that was removed", csrSpec{user: returningNodePrefix + "new", groups: returningGroups,
			signer: clientSigner, name: "system:node:new", org: nodesGroup}, "Denied: join it again"},
		{"a user without permission", csrSpec{user: "jane", groups: "system:authenticated", signer: clientSigner,
			name: "system:node:new", org: nodesGroup}, ""},
		{"a node requests the group system:masters", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner,
			name:   "system:node:new", org: nodesGroup + "," + mastersGroup}, ""},
		{"a bootstrap token requests a user name", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner,
			name:   "admin", org: nodesGroup}, ""},
		{"an empty node name", csrSpec{user: bootstrapUser, groups: joiningGroups, signer: clientSigner,
			name: "system:node:",
			org:  nodesGroup}, ""},
		{"a client with DNS names", csrSpec{user: bootstrapUser, groups: joiningGroups, signer: clientSigner,
			name: "system:node:new", org: nodesGroup, dns: []string{"x"}}, ""},
		{"a client with server usage", csrSpec{user: bootstrapUser, groups: joiningGroups, signer: clientSigner,
			name: "system:node:new", org: nodesGroup,
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth,
				certificatesv1.UsageDigitalSignature}}, ""},
		{"another signer", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: certificatesv1.KubeAPIServerClientSignerName, name: "system:node:new", org: nodesGroup}, ""},

		{"the name of a ready node from another host", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:here", org: nodesGroup, machine: "m2"},
			"Denied: --hostname-override"},
		{"the name of a ready node from the same host", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:here", org: nodesGroup, machine: "m1"},
			"Denied: token create --for here"},
		{"the name of a ready node from the same host with consent", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:here", org: nodesGroup, machine: "m1", forNode: "here"},
			"Approved"},
		{"the name of a ready node without a machine ID", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:here", org: nodesGroup, forNode: "here"},
			"Denied: the request of this host has none"},
		{"the name of an unreachable node from another host", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:lost", org: nodesGroup, machine: "m2"},
			"Denied: kubectl delete node lost"},
		{"the name of an unreachable node with consent", csrSpec{user: bootstrapUser, groups: joiningGroups,
			signer: clientSigner, name: "system:node:lost", org: nodesGroup, machine: "m2", forNode: "lost"},
			"Approved"},

		{"serving the node's address", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:here", org: nodesGroup, ips: []net.IP{at}, dns: []string{"here"}}, "Approved"},
		{"serving another address", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:here", org: nodesGroup, ips: []net.IP{at, net.ParseIP("10.0.0.9")}}, "Denied: 10.0.0.9"},
		{"serving another name", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:here", org: nodesGroup, dns: []string{"kubernetes.default"}},
			"Denied: kubernetes.default"},
		{"serving as another node", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:lost", org: nodesGroup, ips: []net.IP{at}}, ""},
		{"serving without names", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:here", org: nodesGroup}, ""},
		{"serving a URI", csrSpec{user: "system:node:here", groups: nodeGroups, signer: servingSigner,
			name: "system:node:here", org: nodesGroup, ips: []net.IP{at},
			uris: []*url.URL{{Scheme: "spiffe", Host: "x"}}}, ""},
		{"serving before the node is registered", csrSpec{user: "system:node:new", groups: nodeGroups,
			signer: servingSigner,
			name:   "system:node:new", org: nodesGroup, ips: []net.IP{at}}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			here, lost := newNode("here", corev1.ConditionTrue), newNode("lost", corev1.ConditionUnknown)
			here.Status.NodeInfo.MachineID, lost.Status.NodeInfo.MachineID = "m1", "m1"
			here.Annotations = map[string]string{IssuedCertificateAnnotation: "last"}
			lost.Annotations = map[string]string{IssuedCertificateAnnotation: "last"}
			here.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeHostName, Address: "here"}}
			csr, ca := row.csr.build(t), newAuthority(t)
			nodes, err := ca.NodeServingAuthority()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				api := startControllers(t,
					Config{ClientCA: ca, ServingCA: nodes, Client: newReviewingClient(here, lost, csr)},
					[]string{CSRApproving, CSRSigning})
				time.Sleep(time.Second) // until the caches are synced
				synctest.Wait()
				got, err := api.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "csr",
					metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				decision := ""
				for _, c := range got.Status.Conditions {
					decision += string(c.Type)
					if c.Type == certificatesv1.CertificateDenied {
						decision += ": " + c.Message
					}
				}
				as, part, _ := strings.Cut(row.want, ": ")
				if !strings.HasPrefix(decision, as) || !strings.Contains(decision, part) || as == "" && decision != "" {
					t.Errorf("got %q, want %q", decision, row.want)
				}
				if (len(got.Status.Certificate) > 0) != (decision == "Approved") {
					t.Errorf("%s: got certificate of %d bytes", decision, len(got.Status.Certificate))
				}
				if decision == "Approved" {
					checkSignedBy(t, got, ca, nodes)
				}
				checkRecorded(t, api, got)
			})
		})
	}
}

// checkRecorded checks that the last client certificate of an existing node is recorded on its Node, and that the
// record does not change otherwise.
func checkRecorded(t *testing.T, api kubernetes.Interface, csr *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	req, err := parseRequest(csr.Spec.Request)
	if err != nil {
		t.Fatal(err)
	}
	list, err := api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		want := "last"
		if n := &list.Items[i]; csr.Spec.SignerName == clientSigner && len(csr.Status.Certificate) > 0 &&
			req.Subject.CommonName == nodePrefix+n.Name {
			if want, err = pki.CredentialID(csr.Status.Certificate); err != nil {
				t.Fatal(err)
			}
		}
		if got := list.Items[i].Annotations[IssuedCertificateAnnotation]; got != want {
			t.Errorf("node %s: got last certificate %q, want %q", list.Items[i].Name, got, want)
		}
	}
}

// checkSignedBy checks which CA signed the certificate. Serving certificates of nodes must not be
// valid as client certificates.
func checkSignedBy(t *testing.T, csr *certificatesv1.CertificateSigningRequest, ca, nodes *pki.Authority) {
	t.Helper()
	block, _ := pem.Decode(csr.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	of, other := ca, nodes
	if csr.Spec.SignerName == servingSigner {
		of, other = nodes, ca
	}
	if err := of.CheckSignature(cert); err != nil {
		t.Errorf("%s: got %v", csr.Spec.SignerName, err)
	}
	if err := other.CheckSignature(cert); err == nil {
		t.Errorf("%s: signed by the other CA", csr.Spec.SignerName)
	}
}

func TestCSRSigningLimitsCertificate(t *testing.T) {
	ca := newAuthority(t)
	day := int32(86400)
	for name, row := range map[string]struct {
		csr       csrSpec
		seconds   *int32
		approve   bool
		lifetime  time.Duration // 0: not signed
		rejection string
	}{
		"requested duration": {csr: csrSpec{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane",
			org: "dev"}, seconds: &day, lifetime: 24 * time.Hour},
		"minimum of ten minutes": {csr: csrSpec{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane"},
			seconds: new(int32), lifetime: 10 * time.Minute},
		"system:masters": {csr: csrSpec{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane",
			org: mastersGroup}, rejection: "system:masters is not allowed"},
		"subject alternative names are dropped": {csr: csrSpec{signer: certificatesv1.KubeAPIServerClientSignerName,
			name: "jane", dns: []string{"kubernetes.default.svc"}, emails: []string{"jane@example.com"},
			ips: []net.IP{net.IPv4(10, 0, 0, 1)}, uris: []*url.URL{{Scheme: "spiffe", Host: "jane"}}},
			lifetime: 365 * 24 * time.Hour},
		"server usage": {csr: csrSpec{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane",
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}},
			rejection: `usage "server auth" is not allowed`},
		"another signer": {csr: csrSpec{signer: "example.com/mine", name: "jane"}},
	} {
		csr := row.csr.build(t)
		csr.Spec.ExpirationSeconds = row.seconds
		req, rejection := signable(csr)
		if rejection != "" || row.rejection != "" {
			if !strings.Contains(rejection, row.rejection) || row.rejection == "" {
				t.Errorf("%s: rejected with %q", name, rejection)
			}
			continue
		}
		if req == nil {
			if row.lifetime != 0 {
				t.Errorf("%s: not signed", name)
			}
			continue
		}
		text, err := ca.Sign(req.PublicKey, subjectOf(req, csr, pki.DefaultCertificateDuration))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
		if off := time.Until(cert.NotAfter) - row.lifetime; off > time.Minute || off < -time.Minute || cert.IsCA ||
			cert.Subject.CommonName != "jane" {
			t.Errorf("%s: got NotAfter %s, IsCA %v, subject %s", name, cert.NotAfter, cert.IsCA, cert.Subject)
		}
		if n := len(cert.DNSNames) + len(cert.EmailAddresses) + len(cert.IPAddresses) + len(cert.URIs); n > 0 {
			t.Errorf("%s: got %d subject alternative names", name, n)
		}
	}
}

// TestSyncIgnoresDeletedObjects: a node and a request are deleted during their sync.
func TestSyncIgnoresDeletedObjects(t *testing.T) {
	api := newReviewingClient() // has no objects
	f := informers.NewSharedInformerFactory(api, 0)
	c := Config{Client: api, Informers: f, Log: slog.New(slog.DiscardHandler)}
	requests, nodes := f.Certificates().V1().CertificateSigningRequests(), f.Core().V1().Nodes()
	csr := csrSpec{user: bootstrapUser, groups: joiningGroups, signer: clientSigner, name: "system:node:new",
		org: nodesGroup}.build(t)
	if err := requests.Informer().GetIndexer().Add(csr); err != nil {
		t.Fatal(err)
	}
	a := &csrApprovingController{Config: c, requests: requests.Lister(), nodes: nodes.Lister(),
		leases: f.Coordination().V1().Leases().Lister()}
	if again, err := a.sync(t.Context(), csr.Name); again != 0 || err != nil {
		t.Errorf("request: %v, %v", again, err)
	}
	n := &nodeLifecycleController{Config: c, nodes: nodes.Lister(), leases: f.Coordination().V1().Leases().Lister()}
	if again, err := n.syncTaints(t.Context(), newNode("deleted", corev1.ConditionFalse)); again != 0 || err != nil {
		t.Errorf("node: %v, %v", again, err)
	}
}

func TestCSRDeletionTime(t *testing.T) {
	now := metav1.Now()
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: now}}
	if got := csrDeletionTime(csr).Sub(now.Time); got != 24*time.Hour {
		t.Errorf("pending: after %s", got)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied,
		LastUpdateTime: now}}
	if got := csrDeletionTime(csr).Sub(now.Time); got != time.Hour {
		t.Errorf("denied: after %s", got)
	}
	csr.Status.Conditions[0].Type = certificatesv1.CertificateApproved
	if got := csrDeletionTime(csr).Sub(now.Time); got != 24*time.Hour {
		t.Errorf("approved and not signed: after %s", got)
	}
}
