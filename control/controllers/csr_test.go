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

// asking is a request by a user for a certificate.
type asking struct {
	user, groups, signer, name, org string
	dns, emails                     []string
	ips                             []net.IP
	uris                            []*url.URL
	usages                          []certificatesv1.KeyUsage
	machine                         string
}

func (a asking) csr(t testing.TB) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: a.name}, DNSNames: a.dns, EmailAddresses: a.emails, IPAddresses: a.ips, URIs: a.uris}
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
	if a.machine != "" {
		csr.Annotations = map[string]string{MachineIDAnnotation: a.machine}
	}
	return csr
}

const (
	client  = certificatesv1.KubeAPIServerClientKubeletSignerName
	serving = certificatesv1.KubeletServingSignerName
	token   = "system:bootstrap:abcdef"
	// Who has a right is in a group of its name, see reviewing.
	joining = "may create nodeclient,system:authenticated"
	asNode  = nodesGroup + ",may create selfnodeclient,system:authenticated"
	wasOff  = returningNodesGroup + ",may create selfnodeclient,system:authenticated"
)

// reviewing is a client of objects in memory that reviews rights to have requests
// approved.
func reviewing(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		of := review.Spec.ResourceAttributes
		review.Status.Allowed = of.Group == "certificates.k8s.io" && of.Resource == "certificatesigningrequests" && of.Name == "" && of.Namespace == "" &&
			slices.Contains(review.Spec.Groups, "may "+of.Verb+" "+of.Subresource)
		return true, review, nil
	})
	return client
}

func TestRequestsOfNodes(t *testing.T) {
	at := net.ParseIP("10.0.0.1")
	for _, row := range []struct {
		sentence string
		ask      asking
		want     string // "Approved", "Denied: part of the message", or "" for pending
	}{
		{"a new node", asking{user: token, groups: joining, signer: client, name: "system:node:new", org: nodesGroup}, "Approved"},
		{"a node anew", asking{user: "system:node:here", groups: asNode, signer: client, name: "system:node:here", org: nodesGroup}, "Approved"},
		{"a node for another", asking{user: "system:node:here", groups: asNode, signer: client, name: "system:node:other", org: nodesGroup}, ""},
		{"a node's name without its group", asking{user: "system:node:here", groups: "system:authenticated", signer: client, name: "system:node:here", org: nodesGroup}, ""},
		{"who may not join", asking{user: token, groups: "system:bootstrappers,system:authenticated", signer: client, name: "system:node:new", org: nodesGroup}, ""},
		{"a node that may not go on", asking{user: "system:node:here", groups: nodesGroup, signer: client, name: "system:node:here", org: nodesGroup}, ""},
		{"whoever may, by whatever name", asking{user: "jane", groups: joining, signer: client, name: "system:node:new", org: nodesGroup}, "Approved"},
		{"a node that was off", asking{user: returningNodePrefix + "here", groups: wasOff, signer: client, name: "system:node:here", org: nodesGroup}, "Approved"},
		{"a node that was off and may not come back", asking{user: returningNodePrefix + "here", groups: returningNodesGroup, signer: client, name: "system:node:here", org: nodesGroup}, ""},
		{"a node that was off, for another", asking{user: returningNodePrefix + "here", groups: wasOff, signer: client, name: "system:node:lost", org: nodesGroup}, ""},
		{"a node that was off and removed", asking{user: returningNodePrefix + "new", groups: wasOff, signer: client, name: "system:node:new", org: nodesGroup}, "Denied: join it anew"},
		{"somebody", asking{user: "jane", groups: "system:authenticated", signer: client, name: "system:node:new", org: nodesGroup}, ""},
		{"a node that wants to be master", asking{user: token, groups: joining, signer: client, name: "system:node:new", org: nodesGroup + "," + mastersGroup}, ""},
		{"a user by a bootstrap token", asking{user: token, groups: joining, signer: client, name: "admin", org: nodesGroup}, ""},
		{"no name", asking{user: token, groups: joining, signer: client, name: "system:node:", org: nodesGroup}, ""},
		{"a client with names", asking{user: token, groups: joining, signer: client, name: "system:node:new", org: nodesGroup, dns: []string{"x"}}, ""},
		{"a client that also serves", asking{user: token, groups: joining, signer: client, name: "system:node:new", org: nodesGroup,
			usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth, certificatesv1.UsageDigitalSignature}}, ""},
		{"another signer", asking{user: token, groups: joining, signer: certificatesv1.KubeAPIServerClientSignerName, name: "system:node:new", org: nodesGroup}, ""},

		{"a living node's name from another host", asking{user: token, groups: joining, signer: client, name: "system:node:here", org: nodesGroup, machine: "m2"}, "Denied: --hostname-override"},
		{"a living node's own host", asking{user: token, groups: joining, signer: client, name: "system:node:here", org: nodesGroup, machine: "m1"}, "Approved"},
		{"a living node's name from who does not say", asking{user: token, groups: joining, signer: client, name: "system:node:here", org: nodesGroup}, "Approved"},
		{"a lost node's name from another host", asking{user: token, groups: joining, signer: client, name: "system:node:lost", org: nodesGroup, machine: "m2"}, "Approved"},

		{"a node's address", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:here", org: nodesGroup, ips: []net.IP{at}, dns: []string{"here"}}, "Approved"},
		{"another's address", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:here", org: nodesGroup, ips: []net.IP{at, net.ParseIP("10.0.0.9")}}, "Denied: 10.0.0.9"},
		{"another's name", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:here", org: nodesGroup, dns: []string{"kubernetes.default"}}, "Denied: kubernetes.default"},
		{"another node's certificate", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:lost", org: nodesGroup, ips: []net.IP{at}}, ""},
		{"serving without a name", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:here", org: nodesGroup}, ""},
		{"serving a URI", asking{user: "system:node:here", groups: asNode, signer: serving, name: "system:node:here", org: nodesGroup, ips: []net.IP{at}, uris: []*url.URL{{Scheme: "spiffe", Host: "x"}}}, ""},
		{"serving before the node is known", asking{user: "system:node:new", groups: asNode, signer: serving, name: "system:node:new", org: nodesGroup, ips: []net.IP{at}}, ""},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			here, lost := newNode("here", corev1.ConditionTrue), newNode("lost", corev1.ConditionUnknown)
			here.Status.NodeInfo.MachineID, lost.Status.NodeInfo.MachineID = "m1", "m1"
			here.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "here"}}
			csr, ca := row.ask.csr(t), newAuthority(t)
			nodes, err := ca.NodeServingAuthority()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				api := running(t, Config{ClientCA: ca, ServingCA: nodes, Client: reviewing(here, lost, csr)}, []string{CSRApproving, CSRSigning})
				time.Sleep(time.Second) // the bubble's: the caches are full then
				synctest.Wait()
				got, err := api.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "csr", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				verdict := ""
				for _, c := range got.Status.Conditions {
					verdict += string(c.Type)
					if c.Type == certificatesv1.CertificateDenied {
						verdict += ": " + c.Message
					}
				}
				as, part, _ := strings.Cut(row.want, ": ")
				if !strings.HasPrefix(verdict, as) || !strings.Contains(verdict, part) || as == "" && verdict != "" {
					t.Errorf("got %q, want %q", verdict, row.want)
				}
				if (len(got.Status.Certificate) > 0) != (verdict == "Approved") {
					t.Errorf("%s: the certificate has %d bytes", verdict, len(got.Status.Certificate))
				}
				if verdict == "Approved" {
					signedBy(t, got, ca, nodes)
				}
			})
		})
	}
}

// signedBy checks that who trusts the server's authority trusts clients, and nobody by
// what a node has got to show.
func signedBy(t *testing.T, csr *certificatesv1.CertificateSigningRequest, ca, nodes *pki.Authority) {
	t.Helper()
	block, _ := pem.Decode(csr.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	of, other := ca, nodes
	if csr.Spec.SignerName == serving {
		of, other = nodes, ca
	}
	if err := of.CheckSignature(cert); err != nil {
		t.Errorf("%s: %v", csr.Spec.SignerName, err)
	}
	if err := other.CheckSignature(cert); err == nil {
		t.Errorf("%s: the other authority has signed", csr.Spec.SignerName)
	}
}

func TestCertificatesAreAsAskedFor(t *testing.T) {
	ca := newAuthority(t)
	day := int32(86400)
	for sentence, row := range map[string]struct {
		ask     asking
		seconds *int32
		approve bool
		life    time.Duration // 0: none
		flaw    string
	}{
		"as long as asked for": {ask: asking{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane", org: "dev"}, seconds: &day, life: 24 * time.Hour},
		"at least ten minutes": {ask: asking{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane"}, seconds: new(int32), life: 10 * time.Minute},
		"no masters":           {ask: asking{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane", org: mastersGroup}, flaw: "system:masters is not signed"},
		"without other names": {ask: asking{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane", dns: []string{"kubernetes.default.svc"}, emails: []string{"jane@example.com"},
			ips: []net.IP{net.IPv4(10, 0, 0, 1)}, uris: []*url.URL{{Scheme: "spiffe", Host: "jane"}}}, life: 365 * 24 * time.Hour},
		"no servers":               {ask: asking{signer: certificatesv1.KubeAPIServerClientSignerName, name: "jane", usages: []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}}, flaw: `usage "server auth" is not allowed`},
		"of other signers nothing": {ask: asking{signer: "example.com/mine", name: "jane"}},
	} {
		csr := row.ask.csr(t)
		csr.Spec.ExpirationSeconds = row.seconds
		req, flaw := signable(csr)
		if flaw != "" || row.flaw != "" {
			if !strings.Contains(flaw, row.flaw) || row.flaw == "" {
				t.Errorf("%s: flaw %q", sentence, flaw)
			}
			continue
		}
		if req == nil {
			if row.life != 0 {
				t.Errorf("%s: not signed", sentence)
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
		if _, err := cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s: %v", sentence, err)
		}
		if off := time.Until(cert.NotAfter) - row.life; off > time.Minute || off < -time.Minute || cert.IsCA || cert.Subject.CommonName != "jane" {
			t.Errorf("%s: until %s, CA %v, for %s", sentence, cert.NotAfter, cert.IsCA, cert.Subject)
		}
		if n := len(cert.DNSNames) + len(cert.EmailAddresses) + len(cert.IPAddresses) + len(cert.URIs); n > 0 {
			t.Errorf("%s: a client has %d names beside its subject", sentence, n)
		}
	}
}

// TestWhatHasGoneMeanwhileIsNoError: a node and a request that are removed while they
// are looked at.
func TestWhatHasGoneMeanwhileIsNoError(t *testing.T) {
	api := reviewing() // it has neither any more
	f := informers.NewSharedInformerFactory(api, 0)
	c := Config{Client: api, Informers: f, Log: slog.New(slog.DiscardHandler)}
	requests, nodes := f.Certificates().V1().CertificateSigningRequests(), f.Core().V1().Nodes()
	csr := asking{user: token, groups: joining, signer: client, name: "system:node:new", org: nodesGroup}.csr(t)
	if err := requests.Informer().GetIndexer().Add(csr); err != nil {
		t.Fatal(err)
	}
	a := &csrApprovingController{Config: c, requests: requests.Lister(), nodes: nodes.Lister()}
	if again, err := a.sync(t.Context(), csr.Name); again != 0 || err != nil {
		t.Errorf("a request: %v, %v", again, err)
	}
	n := &nodeLifecycleController{Config: c, nodes: nodes.Lister(), leases: f.Coordination().V1().Leases().Lister()}
	if again, err := n.syncTaints(t.Context(), newNode("gone", corev1.ConditionFalse)); again != 0 || err != nil {
		t.Errorf("a node: %v, %v", again, err)
	}
}

func TestRequestsAreRemovedInTime(t *testing.T) {
	now := metav1.Now()
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: now}}
	if got := csrDeletionTime(csr).Sub(now.Time); got != 24*time.Hour {
		t.Errorf("pending: after %s", got)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, LastUpdateTime: now}}
	if got := csrDeletionTime(csr).Sub(now.Time); got != time.Hour {
		t.Errorf("denied: after %s", got)
	}
	csr.Status.Conditions[0].Type = certificatesv1.CertificateApproved
	if got := csrDeletionTime(csr).Sub(now.Time); got != 24*time.Hour {
		t.Errorf("approved and not signed: after %s", got)
	}
}
