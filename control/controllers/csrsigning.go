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
	"k8s.io/apimachinery/pkg/types"
	certlisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"berth/control/pki"
)

const minCertificateDuration = 10 * time.Minute

// csrSigningController signs approved requests for the built-in kubernetes.io signers.
type csrSigningController struct {
	Config

	requests certlisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
}

func newCSRSigningController(c Config) ([]*controller, error) {
	if c.ClientCA == nil || c.ServingCA == nil {
		return nil, nil
	}
	requests, nodes := c.Informers.Certificates().V1().CertificateSigningRequests(), c.Informers.Core().V1().Nodes()
	s := &csrSigningController{Config: c, requests: requests.Lister(), nodes: nodes.Lister()}
	ctrl := c.newController(s.sync)
	ctrl.waitFor(nodes.Informer())
	return []*controller{ctrl}, ctrl.watch(requests.Informer(), objectKey)
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
	req, rejection := signable(csr)
	if req == nil && rejection == "" {
		return 0, nil // handled by another signer
	}
	out := csr.DeepCopy()
	if rejection != "" {
		now := metav1.Now()
		out.Status.Conditions = append(out.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure",
			Message:        rejection,
			LastUpdateTime: now, LastTransitionTime: now,
		})
	} else if out.Status.Certificate, err = s.authority(csr.Spec.SignerName).Sign(req.PublicKey, subjectOf(req, csr,
		s.maxDuration())); err != nil {
		return 0, fmt.Errorf("sign certificate signing request %s: %w", name, err)
	} else if err := s.recordIssued(ctx, req, out); err != nil {
		return 0, err
	}
	if _, err := s.Client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, out,
		metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
		return 0, fmt.Errorf("update status of certificate signing request %s: %w", name, err)
	}
	s.Log.Info("certificate signing request processed", "csr", name, "signer", csr.Spec.SignerName, "rejection",
		rejection)
	return 0, nil
}

// recordIssued stores the ID of a client certificate of an existing node before the node can get it. The certificate
// of a new node is recorded when the node registers with it.
func (s *csrSigningController) recordIssued(ctx context.Context, req *x509.CertificateRequest,
	csr *certificatesv1.CertificateSigningRequest) error {
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	name := nodeNameOf(req.Subject.CommonName)
	if _, err := s.nodes.Get(name); err != nil {
		return ignoreNotFound(err)
	}
	id, err := pki.CredentialID(csr.Status.Certificate)
	if err != nil {
		return fmt.Errorf("certificate signing request %s: %w", csr.Name, err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, IssuedCertificateAnnotation, id)
	_, err = s.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("record certificate of node %s: %w", name, err)
	}
	return nil
}

// authority returns the CA that signs for the signer.
func (s *csrSigningController) authority(name string) CertificateAuthority {
	if name == certificatesv1.KubeletServingSignerName {
		return s.ServingCA
	}
	return s.ClientCA
}

func hasCondition(csr *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == condition
	})
}

// signable returns the parsed request if it may be signed, otherwise the reason why not. It returns
// neither for an unknown signer.
func signable(csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, string) {
	var validate func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest) string
	switch csr.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		validate = validateNodeClient
	case certificatesv1.KubeletServingSignerName:
		validate = validateNodeServing
	case certificatesv1.KubeAPIServerClientSignerName:
		validate = validateClient
	default:
		return nil, ""
	}
	req, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return nil, err.Error()
	}
	if rejection := validate(csr, req); rejection != "" {
		return nil, rejection
	}
	return req, ""
}

// validateClient accepts any client except members of system:masters. Subject alternative names are
// allowed and ignored, because tools add a user's email address by default. See subjectOf.
func validateClient(csr *certificatesv1.CertificateSigningRequest, req *x509.CertificateRequest) string {
	if slices.Contains(req.Subject.Organization, mastersGroup) {
		return "organization " + mastersGroup + " is not allowed"
	}
	for _, u := range csr.Spec.Usages {
		if u != certificatesv1.UsageClientAuth && u != certificatesv1.UsageDigitalSignature &&
			u != certificatesv1.UsageKeyEncipherment {
			return fmt.Sprintf("usage %q is not allowed", u)
		}
	}
	if !slices.Contains(csr.Spec.Usages, certificatesv1.UsageClientAuth) {
		return fmt.Sprintf("usages must contain %q", certificatesv1.UsageClientAuth)
	}
	return ""
}

// maxDuration is the longest lifetime of an issued certificate.
func (s *csrSigningController) maxDuration() time.Duration {
	return cmp.Or(s.SigningDuration, pki.DefaultCertificateDuration)
}

// subjectOf returns the contents of the certificate, limited to what the request asks for. Subject
// alternative names are copied for serving certificates only, because a client is identified by its
// subject.
func subjectOf(req *x509.CertificateRequest, csr *certificatesv1.CertificateSigningRequest,
	maxDuration time.Duration) pki.Subject {
	out := pki.Subject{
		Name: req.Subject.CommonName, Groups: req.Subject.Organization, Duration: maxDuration}
	if csr.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		out.DNSNames, out.IPAddresses = req.DNSNames, req.IPAddresses
	}
	if seconds := csr.Spec.ExpirationSeconds; seconds != nil {
		out.Duration = min(maxDuration, max(minCertificateDuration, time.Duration(*seconds)*time.Second))
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
