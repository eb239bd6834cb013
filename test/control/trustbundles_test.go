package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newSigner returns a key and the certificate in PEM of an authority.
func newSigner(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key, signedCertificate(t, key, key, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "signer"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	})
}

func signedCertificate(t *testing.T, key, by *ecdsa.PrivateKey, template *x509.Certificate) string {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// TestClusterTrustBundles checks the permission to write them, validation, selectors, columns, and who may read them.
func TestClusterTrustBundles(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	domain := s.Namespace + ".example.com"
	_, anchor := newSigner(t)
	bundle := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: domain + ":web:one"},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: domain + "/web", TrustBundle: anchor},
	}
	writer := s.clientAs(t, s.Namespace+"-writer")
	s.Kubectl(t, "create", "clusterrole", s.Namespace+"-writer", "--verb=create,update,get",
		"--resource=clustertrustbundles")
	s.Kubectl(t, "create", "clusterrolebinding", s.Namespace+"-writer", "--clusterrole="+s.Namespace+"-writer",
		"--user="+s.Namespace+"-writer")
	eventually(t, "the signer's permission to be required", func() (bool, string) {
		_, err := writer.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(),
			`user not permitted to attest for signerName "`+domain+`/web"`), errorText(err)
	})
	s.Apply(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "+s.Namespace+
		"-attest}, rules: [{apiGroups: [certificates.k8s.io], resources: [signers], verbs: [attest], resourceNames: ["+
		domain+"/web]}]}")
	s.Kubectl(t, "create", "clusterrolebinding", s.Namespace+"-attest", "--clusterrole="+s.Namespace+"-attest",
		"--user="+s.Namespace+"-writer")
	eventually(t, "the bundle to be created", func() (bool, string) {
		_, err := writer.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
		return err == nil, errorText(err)
	})
	table := s.Kubectl(t, "get", "clustertrustbundles", "--field-selector=spec.signerName="+domain+"/web")
	if got := strings.Join(strings.Fields(table), " "); got != "NAME SIGNERNAME "+bundle.Name+" "+domain+"/web" {
		t.Errorf("got table %q", got)
	}
	bundle.Spec.TrustBundle = anchor + anchor
	bundle.Name = domain + ":web:two"
	_, err := s.Client.CertificatesV1().ClusterTrustBundles().Create(t.Context(), bundle, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(),
		"spec.trustBundle: Invalid value: \"<value omitted>\": duplicate trust anchor (indices [0 1])") {
		t.Errorf("a bundle with a duplicate: got %v", err)
	}
	account := s.clientAs(t, "system:serviceaccount:"+s.Namespace+":default", "system:serviceaccounts")
	eventually(t, "a service account to read the bundle of the server", func() (bool, string) {
		list, err := account.CertificatesV1().ClusterTrustBundles().List(t.Context(),
			metav1.ListOptions{FieldSelector: "spec.signerName=kubernetes.io/kube-apiserver-serving"})
		return err == nil && len(list.Items) == 1 && strings.HasPrefix(list.Items[0].Spec.TrustBundle, "-----BEGIN"),
			errorText(err)
	})
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// TestPodCertificateRequests issues one by hand: defaults, validation, permissions, selectors, columns and status.
func TestPodCertificateRequests(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	authority, _ := newSigner(t)
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := s.Client.CertificatesV1().PodCertificateRequests(s.Namespace)
	request := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "r-"},
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/web", PodName: "p", PodUID: "1",
			ServiceAccountName: "default", ServiceAccountUID: "2", NodeName: "n1", NodeUID: "3",
			StubPKCS10Request: stub},
	}
	bad := request.DeepCopy()
	bad.Spec.StubPKCS10Request = stub[:10]
	if _, err := requests.Create(t.Context(), bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.stubPKCS10Request: Invalid value") {
		t.Errorf("an invalid request: got %v", err)
	}
	made, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
	if err != nil || made.Spec.MaxExpirationSeconds == nil || *made.Spec.MaxExpirationSeconds != 86400 {
		t.Fatalf("got %+v, %v", made.Spec, err)
	}
	from, refresh := time.Now().Truncate(time.Second).UTC(), metav1.NewTime(time.Now().Add(time.Hour))
	to := from.Add(2 * time.Hour)
	made.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued,
			Status: metav1.ConditionTrue, Reason: "Signed", LastTransitionTime: metav1.Now()}},
		CertificateChain: signedCertificate(t, key, authority,
			&x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: to}),
		NotBefore: &metav1.Time{Time: from}, NotAfter: &metav1.Time{Time: to}, BeginRefreshAt: &refresh,
	}
	late := made.DeepCopy()
	late.Status.NotBefore = &metav1.Time{Time: from.Add(time.Second)}
	if _, err := requests.UpdateStatus(t.Context(), late, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "status.notBefore: Invalid value") {
		t.Errorf("another time than in the certificate: got %v", err)
	}
	node := s.clientAs(t, "system:node:n1", "system:nodes")
	list, err := node.CertificatesV1().PodCertificateRequests(s.Namespace).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=n1"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("list of the node: got %+v, %v", list, err)
	}
	for what, err := range map[string]error{
		"list of all": func() error {
			_, err := node.CertificatesV1().PodCertificateRequests(s.Namespace).List(t.Context(), metav1.ListOptions{})
			return err
		}(),
		"status by the node": func() error {
			_, err := node.CertificatesV1().PodCertificateRequests(s.Namespace).UpdateStatus(t.Context(), made,
				metav1.UpdateOptions{})
			return err
		}(),
		"service account of no pod": func() error {
			_, err := node.CoreV1().ServiceAccounts(s.Namespace).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		}(),
		"request for a missing pod": func() error {
			_, err := node.CertificatesV1().PodCertificateRequests(s.Namespace).Create(t.Context(), request,
				metav1.CreateOptions{})
			return err
		}(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want Forbidden", what, err)
		}
	}
	if _, err := requests.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	table := s.Kubectl(t, "get", "podcertificaterequests", "--no-headers")
	if got := strings.Join(strings.Fields(table), " "); got != made.Name+" p default n1 example.com/web Issued" {
		t.Errorf("got table %q", got)
	}
}
