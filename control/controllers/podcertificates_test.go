package controllers

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/control/pki"
)

// newPodCertificateRequest returns the request of a node for the pod web.
func newPodCertificateRequest(t *testing.T, seconds int32,
	change ...func(*certificatesv1.PodCertificateRequest)) *certificatesv1.PodCertificateRequest {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r", CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: PodIdentitySigner, PodName: "web", PodUID: "u1",
			ServiceAccountName: "app", ServiceAccountUID: "u2", NodeName: "n", MaxExpirationSeconds: &seconds,
			StubPKCS10Request: stub},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

// TestPodCertificateSigner: a request gets a certificate that the published bundle verifies, or a reason.
func TestPodCertificateSigner(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u1"},
		Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: "app"}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "app", UID: "u2"}}
	type request = certificatesv1.PodCertificateRequest
	for name, row := range map[string]struct {
		seconds int32
		change  func(*request)
		want    string        // reason
		life    time.Duration // of the certificate
	}{
		"shortest":         {3600, func(*request) {}, "Issued", time.Hour},
		"longest":          {7862400, func(*request) {}, "Issued", 24 * time.Hour},
		"another signer":   {3600, func(r *request) { r.Spec.SignerName = "example.com/x" }, "", 0},
		"another pod":      {3600, func(r *request) { r.Spec.PodUID = "u3" }, "PodMismatch", 0},
		"another node":     {3600, func(r *request) { r.Spec.NodeName = "m" }, "PodMismatch", 0},
		"another account":  {3600, func(r *request) { r.Spec.ServiceAccountName = "admin" }, "PodMismatch", 0},
		"former account":   {3600, func(r *request) { r.Spec.ServiceAccountUID = "u3" }, "PodMismatch", 0},
		"user annotations": {3600, annotate, "InvalidUnverifiedUserAnnotations", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, err := pki.Open(t.TempDir(), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				ca, err := pki.Open(t.TempDir(), time.Now)
				if err == nil {
					ca, err = ca.PodAuthority()
				}
				if err != nil {
					t.Fatal(err)
				}
				client := startControllers(t, Config{PodCA: ca, PodCABundle: ca.PEM()}, []string{PodCertificateSigning},
					pod, account, newPodCertificateRequest(t, row.seconds, row.change))
				time.Sleep(podCacheLag + time.Second)
				waitForSync()
				requests := client.CertificatesV1().PodCertificateRequests("ns")
				r, err := requests.Get(t.Context(), "r", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				reason := ""
				if len(r.Status.Conditions) == 1 {
					reason = r.Status.Conditions[0].Reason
				}
				if reason != row.want {
					t.Fatalf("got %+v, want %q", r.Status.Conditions, row.want)
				}
				if row.life > 0 {
					requirePodCertificate(t, &r.Status, ca, root, row.life)
				}
				list, err := client.CertificatesV1().ClusterTrustBundles().List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 || list.Items[0].Spec.SignerName != PodIdentitySigner ||
					list.Items[0].Spec.TrustBundle != string(ca.PEM()) || !strings.HasPrefix(list.Items[0].Name,
					"berth.dev:pod-identity:") {
					t.Errorf("got bundles %+v, %v", list, err)
				}
			})
		})
	}
}

func annotate(r *certificatesv1.PodCertificateRequest) {
	r.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/a": "b"}
}

func requirePodCertificate(t *testing.T, s *certificatesv1.PodCertificateRequestStatus, ca, other *pki.Authority,
	life time.Duration) {
	t.Helper()
	block, rest := pem.Decode([]byte(s.CertificateChain))
	if block == nil || len(rest) > 0 {
		t.Fatalf("got chain %q", s.CertificateChain)
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(by *pki.Authority) error {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: by.Pool(), CurrentTime: time.Now(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	if verify(ca) != nil || verify(other) == nil {
		t.Errorf("verification by the authority: %v, by another one: %v", verify(ca), verify(other))
	}
	if fmt.Sprint(leaf.URIs) != "[spiffe://cluster.local/ns/ns/sa/app]" || leaf.Subject.String() != "" {
		t.Errorf("got identity %v and subject %q", leaf.URIs, leaf.Subject)
	}
	if !leaf.NotBefore.Equal(s.NotBefore.Time) || !leaf.NotAfter.Equal(s.NotAfter.Time) || s.NotAfter.Sub(
		s.NotBefore.Time) != life {
		t.Errorf("valid from %s to %s, status %s to %s, want %s", leaf.NotBefore, leaf.NotAfter, s.NotBefore,
			s.NotAfter,
			life)
	}
	if at := s.BeginRefreshAt.Sub(s.NotBefore.Time); at < life/2 || at > life-10*time.Minute {
		t.Errorf("refresh after %s of %s", at, life)
	}
}
