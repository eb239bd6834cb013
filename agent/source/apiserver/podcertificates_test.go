package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
)

// signer is a server that ends each PodCertificateRequest with a function, before the node watches it.
type signer struct {
	server
	end func(r *certsv1.PodCertificateRequest)

	mu       sync.Mutex
	requests []*certsv1.PodCertificateRequest
}

func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	switch base := path.Base(r.URL.Path); {
	case r.URL.Path == "/api/v1/nodes/n":
		return respond(r, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node-uid"}})
	case base == "app" || base == "default":
		return respond(r, &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: metav1.ObjectMeta{Name: base, UID: types.UID(base + "-uid")}})
	case base == "podcertificaterequests" && r.Method == http.MethodPost:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, err
		}
		request := o.(*certsv1.PodCertificateRequest)
		request.SetGroupVersionKind(certsv1.SchemeGroupVersion.WithKind("PodCertificateRequest"))
		request.Name, request.UID = "req-1", types.UID(time.Now().String())
		s.end(request)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, request)
		made := request.DeepCopy()
		made.Status = certsv1.PodCertificateRequestStatus{}
		return respond(r, made)
	case base == "podcertificaterequests":
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := r.URL.Query().Get("fieldSelector"); got != "spec.nodeName=n,metadata.name=req-1" {
			return nil, &json.UnsupportedValueError{Str: "field selector " + got}
		}
		return server{s.requests[len(s.requests)-1]}.RoundTrip(r)
	}
	return s.server.RoundTrip(r)
}

func respond(r *http.Request, o runtime.Object) (*http.Response, error) {
	text, err := json.Marshal(o)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body: io.NopCloser(bytes.NewReader(text)), Request: r}, err
}

// startSource runs a source that gets its answers from a server, until the test ends. It returns the last snapshot.
func startSource(t *testing.T, from http.RoundTripper) *atomic.Pointer[source.Snapshot] {
	t.Helper()
	c, err := apiclient.New(apiclient.Options{Config: &rest.Config{Host: "http://192.0.2.1",
		WrapTransport: func(http.RoundTripper) http.RoundTripper { return from }}})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Client: c, NodeName: "n"})
	ctx, cancel := context.WithCancel(t.Context())
	var last atomic.Pointer[source.Snapshot]
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, func(snap source.Snapshot) { last.Store(&snap) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return &last
}

// runWithSigner runs a source with a pod that has a podCertificate source. It returns the current object, and the
// requests until now.
func runWithSigner(t *testing.T, end func(*certsv1.PodCertificateRequest)) (current func() plan.Object,
	requests func() []*certsv1.PodCertificateRequest) {
	t.Helper()
	pod := podOf("a", "")
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = "n", "app"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
			PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/a", KeyType: "ECDSAP256",
				CredentialBundlePath: "x", UserAnnotations: map[string]string{"example.com/a": "b"},
				MaxExpirationSeconds: new(int32(7200))},
		}}},
	}}}
	fake := &signer{server: server{pod}, end: end}
	last := startSource(t, fake)
	key := source.ObjectKey{Kind: plan.PodCertificates,
		NamespacedName: types.NamespacedName{Namespace: "default", Name: "a/v/0"}}
	return func() plan.Object {
			time.Sleep(2 * objectTimeout)
			synctest.Wait()
			return last.Load().Objects[key]
		}, func() []*certsv1.PodCertificateRequest {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			return fake.requests
		}
}

// issue signs a request with its own key, for two hours from now, with renewal after one.
func issue(t *testing.T, r *certsv1.PodCertificateRequest, key *ecdsa.PrivateKey) {
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Error(err)
		return
	}
	from := metav1.NewTime(time.Now())
	refresh, to := metav1.NewTime(from.Add(time.Hour)), metav1.NewTime(from.Add(2*time.Hour))
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from.Time, NotAfter: to.Time}
	der, err := x509.CreateCertificate(rand.Reader, template, template, stub.PublicKey, key)
	if err != nil {
		t.Error(err)
		return
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	r.Status = certsv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: "Issued", Status: metav1.ConditionTrue}},
		CertificateChain: "comment\n" + string(block), NotBefore: &from, NotAfter: &to, BeginRefreshAt: &refresh,
	}
}

// TestPodCertificate requests a certificate and another one, with another key, when it should be renewed.
func TestPodCertificate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		authority, err := newPodKey("ECDSAP256")
		if err != nil {
			t.Fatal(err)
		}
		current, requests := runWithSigner(t, func(r *certsv1.PodCertificateRequest) {
			issue(t, r, authority.(*ecdsa.PrivateKey))
		})
		first := current()
		if first.PodCertificate == nil {
			t.Fatalf("got %+v", first)
		}
		spec := requests()[0].Spec
		if spec.SignerName != "example.com/a" || spec.PodName != "a" || spec.PodUID != "a" || spec.NodeName != "n" ||
			spec.NodeUID != "node-uid" || spec.ServiceAccountName != "app" || spec.ServiceAccountUID != "app-uid" ||
			*spec.MaxExpirationSeconds != 7200 || spec.UnverifiedUserAnnotations["example.com/a"] != "b" {
			t.Errorf("got request %+v", spec)
		}
		requireOwnKey(t, first.PodCertificate)
		time.Sleep(time.Hour - time.Minute)
		if got := current(); got.Version != first.Version || len(requests()) != 1 {
			t.Errorf("before the renewal: got %+v, %d requests", got.Version, len(requests()))
		}
		time.Sleep(podCertificateJitter + time.Minute)
		second := current()
		if second.PodCertificate == nil || second.Version == first.Version ||
			second.PodCertificate.Key == first.PodCertificate.Key {
			t.Errorf("after the renewal: got %+v", second.Version)
		}
		requireOwnKey(t, second.PodCertificate)
	})
}

// requireOwnKey checks that the certificate is that of the key, without comments around it.
func requireOwnKey(t *testing.T, c *plan.PodCertificate) {
	t.Helper()
	keyBlock, _ := pem.Decode([]byte(c.Key))
	block, _ := pem.Decode([]byte(c.Chain))
	if keyBlock == nil || keyBlock.Type != "PRIVATE KEY" || block == nil || !strings.HasPrefix(c.Chain, "-----BEGIN") {
		t.Fatal("the key or the chain is not in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !key.(*ecdsa.PrivateKey).PublicKey.Equal(certificate.PublicKey) {
		t.Errorf("certificate of another key, %v", err)
	}
}

// TestPodCertificateIsRefused: the message of the signer is the error, and the next request follows later.
func TestPodCertificateIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		current, requests := runWithSigner(t, func(r *certsv1.PodCertificateRequest) {
			r.Status.Conditions = []metav1.Condition{{Type: "Denied", Status: metav1.ConditionTrue,
				Reason: "UnsupportedKeyType", Message: "use ED25519"}}
		})
		const want = `pod certificate: PodCertificateRequest "req-1" of signer "example.com/a": Denied: ` +
			`UnsupportedKeyType: use ED25519`
		if got := current(); got.Err != want || len(requests()) != 1 {
			t.Errorf("got %q, %d requests", got.Err, len(requests()))
		}
		time.Sleep(podCertificateRetry)
		if got := current(); got.Err != want || len(requests()) != 2 {
			t.Errorf("later: got %q, %d requests", got.Err, len(requests()))
		}
	})
}

// TestPodCertificateWaitsForSigner: the message says for which signer.
func TestPodCertificateWaitsForSigner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		current, _ := runWithSigner(t, func(*certsv1.PodCertificateRequest) {})
		if got, want := current().Err, `pod certificate: waiting for signer "example.com/a" to issue `+
			`PodCertificateRequest "req-1"`; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		time.Sleep(podCertificateTimeout + podCertificateRetry)
		if got := current().Err; !strings.Contains(got, "was not issued within 15m0s") {
			t.Errorf("after the timeout: got %q", got)
		}
	})
}
