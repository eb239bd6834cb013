package controllers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServingTrustBundle: one bundle has the CA of the server. Older ones of the signer are deleted, others kept.
func TestServingTrustBundle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bundle := func(name, signer string) *certificatesv1.ClusterTrustBundle {
			return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: "old"}}
		}
		// sha256 of "ca" begins with these bytes.
		const want = "kubernetes.io:kube-apiserver-serving:6959097001d10501ac7d54c0"
		client := startControllers(t, Config{CABundle: []byte("ca")}, []string{ServingTrustBundle},
			bundle("kubernetes.io:kube-apiserver-serving:old", apiServerSigner), bundle("other", ""))
		bundles := client.CertificatesV1().ClusterTrustBundles()
		check := func(when string) {
			t.Helper()
			waitForSync()
			list, err := bundles.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, b := range list.Items {
				if names = append(names, b.Name); b.Name == want && (b.Spec.TrustBundle != "ca" ||
					b.Spec.SignerName != apiServerSigner) {
					t.Errorf("%s: got %+v", when, b.Spec)
				}
			}
			if slices.Sort(names); !slices.Equal(names, []string{want, "other"}) {
				t.Errorf("%s: got %q", when, names)
			}
		}
		check("at the start")
		changed := bundle(want, apiServerSigner)
		if _, err := bundles.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("after a change")
		if err := bundles.Delete(t.Context(), want, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		check("after a deletion")
	})
}

// TestPodCertificateCleaner: requests are deleted 15 minutes after their creation.
func TestPodCertificateCleaner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		request := func(name string, age time.Duration) *certificatesv1.PodCertificateRequest {
			return &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
				CreationTimestamp: metav1.NewTime(time.Now().Add(-age))}}
		}
		client := startControllers(t, Config{}, []string{PodCertificateCleaner}, request("old", 16*time.Minute),
			request("new", 5*time.Minute))
		for _, row := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {8 * time.Minute, 1}, {3 * time.Minute, 0}} {
			time.Sleep(row.after)
			waitForSync()
			list, err := client.CertificatesV1().PodCertificateRequests("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != row.want {
				t.Errorf("after another %v: got %d requests, %v, want %d", row.after, len(list.Items), err, row.want)
			}
		}
	})
}
