package pair

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// testPodCertificate signs the request of a pod, which waits for that with an event.
func (p *Pair) testPodCertificate() {
	t := p.t
	p.Apply(t, p.pod("certified", "volumeMounts: [{name: v, mountPath: /v}]", "sleep")+`
  volumes:
  - name: v
    projected:
      sources:
      - podCertificate: {signerName: example.com/test, keyType: ECDSAP256, credentialBundlePath: bundle.pem}
`)
	requests := p.Client.CertificatesV1().PodCertificateRequests(p.Namespace)
	var request *certificatesv1.PodCertificateRequest
	p.waitUntil("the request of the node", func() string {
		list, err := requests.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.podName=certified"})
		if err != nil || len(list.Items) == 0 {
			return fmt.Sprint("no request: ", err)
		}
		request = &list.Items[0]
		return ""
	})
	p.waitUntil("an event that names the signer", func() string {
		out := p.Kubectl(t, "get", "events", "--field-selector=involvedObject.name=certified,reason=FailedMount")
		if !strings.Contains(out, `waiting for signer "example.com/test" to issue PodCertificateRequest`) {
			return out
		}
		return ""
	})
	stub, err := x509.ParseCertificateRequest(request.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now().Truncate(time.Second).UTC()
	to, refresh := from.Add(2*time.Hour), metav1.NewTime(from.Add(time.Hour))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, stub.PublicKey, authority)
	if err != nil {
		t.Fatal(err)
	}
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	request.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued,
			Status: metav1.ConditionTrue, Reason: "Issued", LastTransitionTime: metav1.Now()}},
		CertificateChain: chain, NotBefore: &metav1.Time{Time: from}, NotAfter: &metav1.Time{Time: to},
		BeginRefreshAt: &refresh,
	}
	if _, err := requests.UpdateStatus(t.Context(), request, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.waitForField("pod", "certified", ".status.phase", "Running")
	text, err := os.ReadFile(filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "certified", ".metadata.uid"),
		"volumes/kubernetes.io~projected/v/bundle.pem"))
	if err != nil || !strings.HasPrefix(string(text), "-----BEGIN PRIVATE KEY-----\n") ||
		!strings.HasSuffix(string(text), chain) {
		t.Errorf("got %d bytes, %v, want a key and the certificate", len(text), err)
	}
}

// testPodIdentity runs a pod with a certificate of the server's own signer and with the CA that verifies it. The server
// does not accept the certificate.
func (p *Pair) testPodIdentity() {
	t := p.t
	p.Apply(t, p.pod("identified", "volumeMounts: [{name: v, mountPath: /v}]", "sleep")+`
  volumes:
  - name: v
    projected:
      sources:
      - podCertificate: {signerName: berth.dev/pod-identity, keyType: ED25519, credentialBundlePath: bundle.pem}
      - clusterTrustBundle: {signerName: berth.dev/pod-identity, labelSelector: {}, path: ca.pem}
`)
	p.waitForField("pod", "identified", ".status.phase", "Running")
	volume := filepath.Join(p.Agent.RootDir, "pods", p.field("pod", "identified", ".metadata.uid"),
		"volumes/kubernetes.io~projected/v")
	bundle := filepath.Join(volume, "bundle.pem")
	pair, err := tls.LoadX509KeyPair(bundle, bundle)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if text, err := os.ReadFile(filepath.Join(volume, "ca.pem")); err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatalf("CA: %v", err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		options := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}
		if _, err := pair.Leaf.Verify(options); err != nil {
			t.Errorf("verify the certificate: %v", err)
		}
	}
	if got := fmt.Sprint(pair.Leaf.URIs); got != "[spiffe://cluster.local/ns/default/sa/default]" {
		t.Errorf("got identity %s", got)
	}
	config := restclient.AnonymousClientConfig(p.Server.Config)
	config.CertFile, config.KeyFile = bundle, bundle
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods(p.Namespace).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the server accepts the certificate of a pod")
	}
}
