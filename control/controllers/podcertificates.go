package controllers

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certlisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"

	"berth/control/metrics/subsystem"
	"berth/control/pki"
)

const (
	// PodIdentitySigner is the signer of certificates that contain the service account of a pod.
	PodIdentitySigner = "berth.dev/pod-identity"
	// podTrustDomain is the trust domain of SPIFFE IDs.
	podTrustDomain = "cluster.local"

	maxPodCertificateLifetime = 24 * time.Hour
	// podCertificateSkew is how far the beginning of a certificate lies in the past, for peers with a slow clock. The
	// API server permits 5 minutes.
	podCertificateSkew = time.Minute
	// podCacheLag is how long a request waits for its pod to appear in the cache.
	podCacheLag = 10 * time.Second
)

const podCertificateSubsystem subsystem.Name = "pod_certificate_signing_controller"

var podCertificateRequests = podCertificateSubsystem.CounterVec("requests_total",
	"Number of PodCertificateRequests that were answered.", metrics.ALPHA, "result")

// podCertificateSigner answers the requests for certificates of PodIdentitySigner.
type podCertificateSigner struct {
	Config

	requests certlisters.PodCertificateRequestLister
	pods     corelisters.PodLister
	accounts corelisters.ServiceAccountLister
}

// newPodCertificateSigner returns the signer and the publisher of its CA.
func newPodCertificateSigner(c Config) ([]*controller, error) {
	if c.PodCA == nil {
		return nil, nil
	}
	requests := c.Informers.Certificates().V1().PodCertificateRequests()
	pods, accounts := c.Informers.Core().V1().Pods(), c.Informers.Core().V1().ServiceAccounts()
	s := &podCertificateSigner{c, requests.Lister(), pods.Lister(), accounts.Lister()}
	ctrl := c.newController(s.sync)
	ctrl.waitFor(pods.Informer(), accounts.Informer())
	if err := ctrl.watch(requests.Informer(), objectKey); err != nil {
		return nil, err
	}
	publisher, err := c.newTrustBundlePublisher(PodIdentitySigner, c.PodCABundle)
	return append(publisher, ctrl), err
}

func (s *podCertificateSigner) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // no key of a request
	}
	r, err := s.requests.PodCertificateRequests(namespace).Get(name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	if r.Spec.SignerName != PodIdentitySigner || len(r.Status.Conditions) > 0 {
		return 0, nil
	}
	pod, podErr := s.pods.Pods(namespace).Get(r.Spec.PodName)
	account, accountErr := s.accounts.ServiceAccounts(namespace).Get(r.Spec.ServiceAccountName)
	for _, err := range []error{podErr, accountErr} {
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("pod certificate request %s: %w", key, err)
		}
	}
	out := r.DeepCopy()
	denial := deniedPodCertificate(r, pod, account)
	switch {
	case denial == nil:
		if err := s.issue(out, time.Now()); err != nil {
			return 0, fmt.Errorf("pod certificate request %s: %w", key, err)
		}
	case denial.Reason == podMismatch && time.Since(r.CreationTimestamp.Time) < podCacheLag:
		return time.Second, nil
	default:
		out.Status.Conditions = []metav1.Condition{*denial}
	}
	_, err = s.Client.CertificatesV1().PodCertificateRequests(namespace).UpdateStatus(ctx, out, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("update status of pod certificate request %s: %w", key, err)
	}
	result := "issued"
	if denial != nil {
		result = "denied"
		s.Log.Warn("pod certificate request denied", "request", key, "pod", r.Spec.PodName, "reason", denial.Reason)
	}
	podCertificateRequests.WithLabelValues(result).Inc()
	return 0, nil
}

// podMismatch is the reason of a denied request that does not belong to an existing pod.
const podMismatch = "PodMismatch"

// deniedPodCertificate returns the condition of a request that the signer denies, or nil. The pod and the account are
// nil if they do not exist.
func deniedPodCertificate(r *certificatesv1.PodCertificateRequest, pod *corev1.Pod,
	account *corev1.ServiceAccount) *metav1.Condition {
	deny := func(reason, format string, args ...any) *metav1.Condition {
		return &metav1.Condition{Type: certificatesv1.PodCertificateRequestConditionTypeDenied,
			Status: metav1.ConditionTrue, Reason: reason, Message: fmt.Sprintf(format, args...),
			LastTransitionTime: metav1.Now()}
	}
	s := &r.Spec
	switch {
	case len(s.UnverifiedUserAnnotations) > 0:
		return deny(certificatesv1.PodCertificateRequestConditionInvalidUserConfig,
			"signer %s supports no unverifiedUserAnnotations", PodIdentitySigner)
	case pod == nil || pod.UID != s.PodUID:
		return deny(podMismatch, "pod %s with UID %s does not exist", s.PodName, s.PodUID)
	case pod.Spec.NodeName != string(s.NodeName):
		return deny(podMismatch, "pod %s is not assigned to node %s", s.PodName, s.NodeName)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName || account == nil || account.UID != s.ServiceAccountUID:
		return deny(podMismatch, "pod %s does not run as service account %s with UID %s", s.PodName,
			s.ServiceAccountName, s.ServiceAccountUID)
	}
	return nil
}

// issue fills in the status of a request with a certificate.
func (s *podCertificateSigner) issue(r *certificatesv1.PodCertificateRequest, now time.Time) error {
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return fmt.Errorf("parse certificate request: %w", err)
	}
	subject := podCertificateSubject(r, now)
	chain, err := s.PodCA.Sign(stub.PublicKey, subject)
	if err != nil {
		return fmt.Errorf("sign certificate: %w", err)
	}
	from, to := metav1.NewTime(subject.NotBefore), metav1.NewTime(subject.NotAfter)
	refresh := metav1.NewTime(from.Add(to.Sub(from.Time) * 2 / 3).Truncate(time.Second))
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued,
			Status: metav1.ConditionTrue, Reason: "Issued", Message: "The certificate has been issued",
			LastTransitionTime: metav1.NewTime(now)}},
		CertificateChain: string(chain), NotBefore: &from, NotAfter: &to, BeginRefreshAt: &refresh,
	}
	return nil
}

// podCertificateSubject returns the contents of a certificate: the SPIFFE ID of the service account, and the requested
// lifetime, a day at most.
func podCertificateSubject(r *certificatesv1.PodCertificateRequest, now time.Time) pki.Subject {
	life := maxPodCertificateLifetime
	if seconds := r.Spec.MaxExpirationSeconds; seconds != nil {
		life = min(life, time.Duration(*seconds)*time.Second)
	}
	from := now.Add(-podCertificateSkew).Truncate(time.Second).UTC()
	return pki.Subject{
		URIs: []*url.URL{{Scheme: "spiffe", Host: podTrustDomain,
			Path: "/ns/" + r.Namespace + "/sa/" + r.Spec.ServiceAccountName}},
		ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		NotBefore:    from, NotAfter: from.Add(life),
	}
}
