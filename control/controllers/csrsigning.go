package controllers

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certlisters "k8s.io/client-go/listers/certificates/v1"

	"berth/control/pki"
)

const minCertificateDuration = 10 * time.Minute

// csrSigningController signs approved requests of the signers that it stands for.
type csrSigningController struct {
	Config

	requests certlisters.CertificateSigningRequestLister
}

func newCSRSigningController(c Config) ([]*controller, error) {
	if c.ClientCA == nil || c.ServingCA == nil {
		return nil, nil
	}
	requests := c.Informers.Certificates().V1().CertificateSigningRequests()
	s := &csrSigningController{Config: c, requests: requests.Lister()}
	w := c.newController(s.sync)
	return []*controller{w}, w.watch(requests.Informer(), objectKey)
}

func (s *csrSigningController) sync(ctx context.Context, name string) (time.Duration, error) {
	csr, err := s.requests.Get(name)
	if err != nil {
		return 0, ignoreNotFound(err)
	}
	if len(csr.Status.Certificate) > 0 || !hasCondition(csr, certificatesv1.CertificateApproved) ||
		hasCondition(csr, certificatesv1.CertificateDenied) || hasCondition(csr, certificatesv1.CertificateFailed) {
		return 0, nil
	}
	req, flaw := signable(csr)
	if req == nil && flaw == "" {
		return 0, nil // another signer's
	}
	out := csr.DeepCopy()
	if flaw != "" {
		now := metav1.Now()
		out.Status.Conditions = append(out.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: flaw,
			LastUpdateTime: now, LastTransitionTime: now,
		})
	} else if out.Status.Certificate, err = s.authority(csr.Spec.SignerName).Sign(req.PublicKey, subjectOf(req, csr, s.maxDuration())); err != nil {
		return 0, fmt.Errorf("sign certificate request %s: %w", name, err)
	}
	if _, err := s.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, out, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("answer certificate request %s: %w", name, err)
	}
	s.Log.Info("certificate request is answered", "request", name, "signer", csr.Spec.SignerName, "refused", flaw)
	return 0, nil
}

// authority is the one that signs for a signer.
func (s *csrSigningController) authority(name string) CertificateAuthority {
	if name == certificatesv1.KubeletServingSignerName {
		return s.ServingCA
	}
	return s.ClientCA
}

func hasCondition(csr *certificatesv1.CertificateSigningRequest, as certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == as })
}

// signable is the request if a signer of ours may sign it, or else what is wrong
// with it; neither: the signer is not ours.
func signable(csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, string) {
	var flawOf func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) string
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		flawOf = validateNodeClient
	case certificatesv1.KubeletServingSignerName:
		flawOf = validateNodeServing
	case certificatesv1.KubeAPIServerClientSignerName:
		flawOf = validateClient
	default:
		return nil, ""
	}
	req, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return nil, err.Error()
	}
	if flaw := flawOf(csr, req); flaw != "" {
		return nil, flaw
	}
	return req, ""
}

// validateClient: any client but one that nothing is forbidden to. Alternative names are no
// flaw: tools ask for a user's e-mail address by habit; see subjectOf.
func validateClient(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	if slices.Contains(req.Subject.Organization, mastersGroup) {
		return "organization " + mastersGroup + " is not signed"
	}
	for _, u := range csr.Spec.Usages {
		if u != certificatesv1.UsageClientAuth && u != certificatesv1.UsageDigitalSignature && u != certificatesv1.UsageKeyEncipherment {
			return fmt.Sprintf("usage %q is not allowed", u)
		}
	}
	if !slices.Contains(csr.Spec.Usages, certificatesv1.UsageClientAuth) {
		return fmt.Sprintf("usages must contain %q", certificatesv1.UsageClientAuth)
	}
	return ""
}

// maxDuration is the most that is given.
func (s *csrSigningController) maxDuration() time.Duration {
	return cmp.Or(s.SigningDuration, pki.DefaultCertificateDuration)
}

// subjectOf is what the certificate says: what was asked for, no more. Alternative names
// are for what a node shows: a client is known by its subject alone.
func subjectOf(req *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest, longest time.Duration) pki.Subject {
	out := pki.Subject{
		Name: req.Subject.CommonName, Groups: req.Subject.Organization, Duration: longest}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		out.DNSNames, out.IPAddresses = req.DNSNames, req.IPAddresses
	}
	if asked := csr.Spec.ExpirationSeconds; asked != nil {
		out.Duration = min(longest, max(minCertificateDuration, time.Duration(*asked)*time.Second))
	}
	for _, u := range csr.Spec.Usages {
		switch u {
		case certificatesv1.UsageClientAuth:
			out.ExtKeyUsages = append(out.ExtKeyUsages, x509.ExtKeyUsageClientAuth)
		case certificatesv1.UsageServerAuth:
			out.ExtKeyUsages = append(out.ExtKeyUsages, x509.ExtKeyUsageServerAuth)
		}
	}
	return out
}
