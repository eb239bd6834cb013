package apiserver

import (
	"context"
	"encoding/pem"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// certificate returns a PEM block. The source does not parse the certificate.
func certificate(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

// podWithTrust returns a pod with a projection for each signer, which selects the label use=web, and for each name.
func podWithTrust(signers, names []string) *corev1.Pod {
	pod := podOf("a", "")
	src := &corev1.ProjectedVolumeSource{}
	for _, signer := range signers {
		src.Sources = append(src.Sources, corev1.VolumeProjection{
			ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: &signer, Path: "x",
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"use": "web"}}},
		})
	}
	for _, name := range names {
		src.Sources = append(src.Sources, corev1.VolumeProjection{
			ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &name, Path: "x"},
		})
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: src}}}
	pod.Spec.NodeName = "n"
	return pod
}

// objectsOf runs a source until its server has answered, and returns the objects by name.
func objectsOf(t *testing.T, c *apiclient.Client) func(name string) plan.Object {
	t.Helper()
	s := New(Options{Client: c, NodeName: "n"})
	ctx, cancel := context.WithCancel(t.Context())
	var last source.Snapshot
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, func(snap source.Snapshot) { last = snap }) }()
	time.Sleep(2 * objectTimeout)
	synctest.Wait()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return func(name string) plan.Object {
		return last.Objects[source.ObjectKey{Kind: plan.ClusterTrustBundle, NamespacedName: types.NamespacedName{
			Name: name}}]
	}
}

// TestClusterTrustBundles reads bundles by name and by signer. Certificates of several bundles are merged.
func TestClusterTrustBundles(t *testing.T) {
	t.Parallel()
	bundle := func(name, signer, use, text string) *certsv1.ClusterTrustBundle {
		b := &certsv1.ClusterTrustBundle{Spec: certsv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text}}
		b.Name, b.Labels = name, map[string]string{"use": use}
		return b
	}
	synctest.Test(t, func(t *testing.T) {
		get := objectsOf(t, answering(t,
			podWithTrust([]string{"example.com/a", "example.com/b"}, []string{"root", "gone"}),
			bundle("example.com:a:1", "example.com/a", "web", "comment\n"+certificate("2")+certificate("1")),
			bundle("example.com:a:2", "example.com/a", "web", certificate("2")+certificate("3")),
			bundle("example.com:a:3", "example.com/a", "other", certificate("4")),
			bundle("root", "", "", certificate("5"))))
		one := get("example.com/a?use=web")
		if want := certificate("1") + certificate("2") + certificate("3"); one.TrustBundle != want ||
			one.Version.Version == "" {
			t.Errorf("of a signer: got %+v, want %s", one, want)
		}
		if got := get("root"); got.TrustBundle != certificate("5") || got.Version.Version == one.Version.Version {
			t.Errorf("by name: got %+v", got)
		}
		for _, name := range []string{"gone", "example.com/b?use=web"} {
			if got := get(name); !got.Missing {
				t.Errorf("%s: got %+v, want a missing object", name, got)
			}
		}
	})
}

// TestServerWithoutClusterTrustBundles: the error names the kind.
func TestServerWithoutClusterTrustBundles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := podWithTrust(nil, []string{"root"})
		c, err := apiclient.New(apiclient.Options{Config: &rest.Config{
			Host: "http://192.0.2.1", WrapTransport: func(http.RoundTripper) http.RoundTripper {
				return withoutKind{server{pod}}
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if got := objectsOf(t, c)("root"); got.Err != `clustertrustbundle "root": `+errNoTrustBundles.Error() {
			t.Errorf("got %+v", got)
		}
	})
}

// withoutKind is a server without ClusterTrustBundles.
type withoutKind struct{ server }

func (s withoutKind) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/apis/certificates.k8s.io/v1/clustertrustbundles" {
		return &http.Response{StatusCode: http.StatusNotFound, Body: http.NoBody, Request: r}, nil
	}
	return s.server.RoundTrip(r)
}
