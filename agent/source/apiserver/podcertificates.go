package apiserver

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	certsv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
)

const (
	// podCertificateTimeout is how long a signer may take. API servers delete older requests.
	podCertificateTimeout = 15 * time.Minute
	// podCertificateRetry is the longest time until the next request after a failure, and the time after a denial.
	podCertificateRetry = 5 * time.Minute
	// podCertificateJitter distributes the renewals of many pods. It is half of the time that a signer must leave
	// between the start of the renewal and the end of the certificate.
	podCertificateJitter = 5 * time.Minute
)

// errNoPodCertificates replaces the error of a server that does not know the kind.
var errNoPodCertificates = errors.New("the API server does not serve PodCertificateRequests (certificates.k8s.io/v1)")

// refusedError is a request that its signer has denied or failed.
type refusedError struct{ message string }

func (e refusedError) Error() string { return e.message }

// issuedCertificate is the certificate of a PodCertificateRequest with its key.
type issuedCertificate struct {
	request types.UID
	value   plan.PodCertificate
	refresh time.Time
}

// startPodCertificate requests a certificate for a podCertificate source of the pod. The key never leaves the node.
func (s *Source) startPodCertificate(ctx context.Context, key source.ObjectKey, u *object, pod *corev1.Pod) {
	_, name, _ := strings.Cut(key.Name, "/")
	src := podspec.PodCertificateOf(pod, name)
	if src == nil { // the reference comes from the same pod
		return
	}
	u.token.request = func() {
		u.token.pending = true
		s.wg.Go(func() {
			out, err := s.issue(ctx, u, pod, src)
			s.do(func() {
				if ctx.Err() == nil {
					s.handlePodCertificate(u, key, out, err)
				}
			})
		})
	}
	u.token.due = s.opt.Now()
}

// handlePodCertificate handles the result of a request. After a failure, the former certificate is kept.
func (s *Source) handlePodCertificate(u *object, key source.ObjectKey, out issuedCertificate, err error) {
	t, now := &u.token, s.opt.Now()
	t.pending = false
	if err != nil {
		u.lastErr = errorText(err)
		t.due = now.Add(min(time.Second<<min(t.attempts, 10), podCertificateRetry))
		if refused := (refusedError{}); errors.As(err, &refused) {
			t.due = now.Add(podCertificateRetry)
		}
		t.attempts++
		if u.value.PodCertificate == nil {
			u.resolved, s.dirty = true, true
			u.value = plan.Object{Version: plan.Version{Err: u.errorMessage(key)}}
			return
		}
		s.opt.Log.Warn("pod certificate renewal failed", "podCertificate", key.Name, "err", err)
		return
	}
	t.attempts = 0
	t.due = out.refresh.Add(time.Duration(mathrand.Int64N(int64(podCertificateJitter))))
	s.set(u, plan.Object{
		PodCertificate: &out.value, Version: plan.Version{Version: "certificate of request " + string(out.request)},
	})
}

// issue creates a PodCertificateRequest and waits for its signer.
func (s *Source) issue(ctx context.Context, u *object, pod *corev1.Pod, src *corev1.PodCertificateProjection) (
	out issuedCertificate, err error) {
	ctx, cancel := context.WithTimeout(ctx, podCertificateTimeout)
	defer cancel()
	key, err := newPodKey(src.KeyType)
	if err != nil {
		return out, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return out, fmt.Errorf("encode key: %w", err)
	}
	request, err := s.newPodCertificateRequest(ctx, pod, src, key)
	if err != nil {
		return out, err
	}
	made := certsv1.PodCertificateRequest{}
	err = s.opt.Client.Create(ctx, apiclient.PodCertificateRequests, pod.Namespace, request, &made)
	switch {
	case apierrors.IsNotFound(err):
		return out, errNoPodCertificates
	case err != nil:
		return out, fmt.Errorf("create PodCertificateRequest: %w", err)
	}
	s.do(func() {
		u.lastErr = fmt.Sprintf("waiting for signer %q to issue PodCertificateRequest %q", src.SignerName, made.Name)
	})
	if err := s.waitForSigner(ctx, &made); err != nil {
		return out, err
	}
	chain := certificateBlocks(made.Status.CertificateChain)
	if chain == "" || made.Status.BeginRefreshAt == nil {
		return out, fmt.Errorf("PodCertificateRequest %q is issued without a certificate or its renewal time",
			made.Name)
	}
	return issuedCertificate{
		request: made.UID, refresh: made.Status.BeginRefreshAt.Time,
		value: plan.PodCertificate{
			Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})), Chain: chain,
		},
	}, nil
}

// newPodCertificateRequest returns the request for a key, with the UIDs of the node and of the service account.
func (s *Source) newPodCertificateRequest(ctx context.Context, pod *corev1.Pod, src *corev1.PodCertificateProjection,
	key crypto.Signer) (*certsv1.PodCertificateRequest, error) {
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("create certificate request: %w", err)
	}
	name := cmp.Or(pod.Spec.ServiceAccountName, "default")
	node, account := corev1.Node{}, corev1.ServiceAccount{}
	if err := s.opt.Client.Get(ctx, apiclient.Nodes, "", s.opt.NodeName, &node); err != nil {
		return nil, fmt.Errorf("read node: %w", err)
	}
	if err := s.opt.Client.Get(ctx, apiclient.ServiceAccounts, pod.Namespace, name, &account); err != nil {
		return nil, fmt.Errorf("read service account: %w", err)
	}
	return &certsv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certsv1.PodCertificateRequestSpec{
			SignerName: src.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: name,
			ServiceAccountUID: account.UID, NodeName: types.NodeName(s.opt.NodeName), NodeUID: node.UID,
			MaxExpirationSeconds: src.MaxExpirationSeconds, StubPKCS10Request: stub,
			UnverifiedUserAnnotations: src.UserAnnotations,
		},
	}, nil
}

// waitForSigner waits until a request is issued, denied or failed, and sets its status.
func (s *Source) waitForSigner(ctx context.Context, r *certsv1.PodCertificateRequest) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan *certsv1.PodCertificateRequest, 1) // nil: deleted
	end := func(with *certsv1.PodCertificateRequest) {
		select {
		case ended <- with:
			stop()
		default:
		}
	}
	check := func(o runtime.Object) {
		if now, ok := o.(*certsv1.PodCertificateRequest); ok && now.UID == r.UID && len(now.Status.Conditions) > 0 {
			end(now)
		}
	}
	s.opt.Client.Watch(watching, apiclient.WatchOptions{
		Resource: apiclient.PodCertificateRequests, Namespace: r.Namespace,
		FieldSelector: fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", s.opt.NodeName),
			apiclient.ByName(r.Name)),
		OnReplace: func(list []runtime.Object) {
			for _, o := range list {
				check(o)
			}
		},
		OnUpdate: check,
		OnDelete: func(runtime.Object) { end(nil) },
	})
	select {
	case with := <-ended:
		if with == nil {
			return fmt.Errorf("PodCertificateRequest %q was deleted before it was issued", r.Name)
		}
		r.Status = with.Status
	default:
		return fmt.Errorf("PodCertificateRequest %q of signer %q was not issued within %v", r.Name, r.Spec.SignerName,
			podCertificateTimeout)
	}
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certsv1.PodCertificateRequestConditionTypeDenied, certsv1.PodCertificateRequestConditionTypeFailed:
			return refusedError{fmt.Sprintf("PodCertificateRequest %q of signer %q: %s: %s: %s", r.Name,
				r.Spec.SignerName, c.Type, c.Reason, c.Message)}
		}
	}
	return nil
}

// newPodKey generates a key of a type of podCertificate sources.
func newPodKey(kind string) (crypto.Signer, error) {
	switch kind {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, fmt.Errorf("unknown key type %q", kind)
}

// certificateBlocks returns the certificates of a text in PEM without headers and comments.
func certificateBlocks(text string) string {
	var out []byte
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return string(out)
		}
		if block.Type == "CERTIFICATE" {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
		}
	}
}
