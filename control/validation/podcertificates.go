package validation

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Limits of PodCertificateRequests.
const (
	defaultPodCertificateSeconds  = 24 * 3600
	minPodCertificateSeconds      = 3600
	maxPodCertificateSeconds      = 91 * 24 * 3600
	maxOwnPodCertificateSeconds   = 24 * 3600 // of signers of Kubernetes
	maxStubRequest                = 10 << 10  // in bytes
	maxCertificateChain           = 100 << 10 // in bytes
	podCertificateClockSkew       = 5 * time.Minute
	podCertificateRefreshDistance = 10 * time.Minute // from both ends of the lifetime
)

var (
	podCertificateConditions = []string{certificatesv1.PodCertificateRequestConditionTypeIssued,
		certificatesv1.PodCertificateRequestConditionTypeDenied,
		certificatesv1.PodCertificateRequestConditionTypeFailed}
	chainPath   = status.Child("certificateChain")
	stubRequest = spec.Child("stubPKCS10Request")
)

// podCertificateRequest validates a new PodCertificateRequest. That pod, service account and node exist and belong
// together is checked by admission, for requests of nodes.
func (k *validator) podCertificateRequest(r *certificatesv1.PodCertificateRequest) {
	s := &r.Spec
	k.signer(spec.Child("signerName"), s.SignerName)
	k.userAnnotations(spec.Child("unverifiedUserAnnotations"), s.UnverifiedUserAnnotations)
	k.object(spec.Child("podName"), s.PodName)
	k.uid(spec.Child("podUID"), string(s.PodUID))
	k.object(spec.Child("serviceAccountName"), s.ServiceAccountName)
	k.uid(spec.Child("serviceAccountUID"), string(s.ServiceAccountUID))
	k.object(spec.Child("nodeName"), string(s.NodeName))
	k.uid(spec.Child("nodeUID"), string(s.NodeUID))
	at, most := spec.Child("maxExpirationSeconds"), int32(maxPodCertificateSeconds)
	if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" ||
		strings.HasSuffix(domain, ".kubernetes.io") {
		most = maxOwnPodCertificateSeconds
	}
	switch n := s.MaxExpirationSeconds; {
	case n == nil:
		k.Required(at, "must be set")
	case *n < minPodCertificateSeconds || *n > most:
		k.Invalid(at, *n, "must be in the range [%d, %d]", minPodCertificateSeconds, most)
	}
	if len(s.StubPKCS10Request) > maxStubRequest {
		k.Add(field.TooLong(stubRequest, "", maxStubRequest))
		return
	}
	if len(s.StubPKCS10Request) == 0 {
		k.Invalid(spec, field.OmitValueType{},
			"exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")
		return
	}
	if message := stubRequestError(s.StubPKCS10Request); message != "" {
		k.Invalid(stubRequest, field.OmitValueType{}, "%s", message)
	}
}

// stubRequestError returns what is wrong with the certificate request of a PodCertificateRequest, or "".
func stubRequestError(der []byte) string {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return "must be a valid DER-serialized PKCS#10 certificate signing request"
	}
	switch key := r.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if n := key.Params().BitSize; n != 256 && n != 384 && n != 521 {
			return "elliptic public keys must use curve P256, P384 or P521"
		}
	case *rsa.PublicKey:
		if n := key.Size() * 8; n != 3072 && n != 4096 {
			return "RSA keys must have modulus size 3072 or 4096"
		}
	default:
		return "unknown public key type; supported types are Ed25519, ECDSA, and RSA"
	}
	if err := r.CheckSignature(); err != nil {
		return "could not verify the signature of the certificate signing request"
	}
	return ""
}

// podCertificateStatus validates an update of the status. It changes once, when the request is issued, denied or
// failed.
func (k *validator) podCertificateStatus(r, old *certificatesv1.PodCertificateRequest) {
	list, known := status.Child("conditions"), 0
	for i, c := range r.Status.Conditions {
		at := list.Index(i)
		if !slices.Contains(podCertificateConditions, c.Type) {
			k.Add(field.NotSupported(at.Child("type"), c.Type, podCertificateConditions))
			continue
		}
		if known++; known > 1 {
			k.Invalid(at.Child("type"), c.Type,
				`There may be at most one condition with type "Issued", "Denied", or "Failed"`)
		}
		if c.Status != metav1.ConditionTrue {
			k.Add(field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	k.AddAll(metavalidation.ValidateConditions(r.Status.Conditions, list))
	if len(k.Errors()) > 0 {
		return
	}
	unchanged := equality.Semantic.DeepEqual(r.Status, old.Status)
	switch {
	case len(old.Status.Conditions) > 0:
		if !unchanged {
			k.Invalid(status, field.OmitValueType{},
				"immutable after PodCertificateRequest is issued, denied, or failed")
		}
	case len(r.Status.Conditions) == 0:
		if !unchanged {
			k.Invalid(status, field.OmitValueType{},
				`status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
		}
	case r.Status.Conditions[0].Type == certificatesv1.PodCertificateRequestConditionTypeIssued:
		k.issued(r)
	case !equality.Semantic.DeepEqual(r.Status,
		certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions}):
		k.Invalid(status, field.OmitValueType{},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	}
}

// issued validates the certificate of an issued request. That it was issued a moment ago is checked by issuedNow.
func (k *validator) issued(r *certificatesv1.PodCertificateRequest) {
	s := &r.Status
	if len(s.CertificateChain) > maxCertificateChain {
		k.Add(field.TooLong(chainPath, "", maxCertificateChain))
		return
	}
	leaf, message := leafCertificate(s.CertificateChain)
	if message != "" {
		k.Invalid(chainPath, omitted, "%s", message)
		return
	}
	k.leafNames(leaf)
	if stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request); err != nil ||
		!bytes.Equal(stub.RawSubjectPublicKeyInfo, leaf.RawSubjectPublicKeyInfo) {
		k.Invalid(chainPath, omitted, "leaf certificate was not issued to the requested public key")
		return
	}
	k.issuedTimes(r, leaf)
}

// leafCertificate returns the first certificate of a chain, or what is wrong with the chain.
func leafCertificate(chain string) (*x509.Certificate, string) {
	var leaf *x509.Certificate
	for rest := []byte(chain); ; {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		switch {
		case block == nil && leaf == nil:
			return nil, "issued certificate chain must contain at least one certificate"
		case block == nil:
			return leaf, ""
		case block.Type != "CERTIFICATE":
			return nil, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && leaf == nil:
			return nil, "leaf certificate does not parse as valid X.509"
		case err != nil:
			return nil, "intermediate certificate does not parse as valid X.509"
		case leaf == nil:
			leaf = certificate
		}
	}
}

// leafNames validates the subject alternative names of a certificate.
func (k *validator) leafNames(leaf *x509.Certificate) {
	for _, name := range leaf.DNSNames {
		switch {
		case name == "":
			k.Invalid(chainPath, name, "leaf certificate should not contain empty DNSName")
		case strings.Contains(name, ".."):
			k.Invalid(chainPath, name, "leaf certificate's DNSName should not contain '..'")
		case strings.HasPrefix(name, "."), strings.HasSuffix(name, "."):
			k.Invalid(chainPath, name, "leaf certificate's DNSName should not start or end with '.'")
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			k.Invalid(chainPath, address, "leaf certificate should not contain invalid EmailAddress")
		}
	}
}

// issuedTimes validates the times in the status of an issued request against its certificate.
func (k *validator) issuedTimes(r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate) {
	s, refresh := &r.Status, status.Child("beginRefreshAt")
	const consistent = "must be present and consistent with the issued certificate"
	if s.NotBefore == nil {
		k.Required(status.Child("notBefore"), consistent)
	}
	if s.NotAfter == nil {
		k.Required(status.Child("notAfter"), consistent)
	}
	if s.BeginRefreshAt == nil {
		k.Required(refresh, "must be present and in the range [notbefore+10min, notafter-10min]")
	}
	if s.NotBefore == nil || s.NotAfter == nil || s.BeginRefreshAt == nil {
		return
	}
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		k.Invalid(status.Child("notBefore"), s.NotBefore.Time,
			"must be set to the NotBefore time encoded in the leaf certificate")
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		k.Invalid(status.Child("notAfter"), s.NotAfter.Time,
			"must be set to the NotAfter time encoded in the leaf certificate")
	case lifetime < minPodCertificateSeconds*time.Second:
		k.Invalid(chainPath, lifetime.String(), "leaf certificate lifetime must be >= 1 hour")
	case r.Spec.MaxExpirationSeconds != nil && lifetime > time.Duration(*r.Spec.MaxExpirationSeconds)*time.Second:
		k.Invalid(chainPath, lifetime.String(), "leaf certificate lifetime must be <= spec.maxExpirationSeconds (%d)",
			*r.Spec.MaxExpirationSeconds)
	case s.BeginRefreshAt.Time.Before(leaf.NotBefore.Add(podCertificateRefreshDistance)):
		k.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")
	case s.BeginRefreshAt.Time.After(leaf.NotAfter.Add(-podCertificateRefreshDistance)):
		k.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")
	}
}

// IssuedNow returns an error if a request becomes issued with a certificate that does not begin within 5 minutes of a
// time.
func IssuedNow(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	if len(old.Status.Conditions) > 0 || r.Status.NotBefore == nil {
		return nil
	}
	if at := r.Status.NotBefore.Time; at.Before(now.Add(-podCertificateClockSkew)) ||
		at.After(now.Add(podCertificateClockSkew)) {
		return field.ErrorList{field.Invalid(status.Child("notBefore"), at,
			fmt.Sprintf("must be set to within %v minutes of kube-apiserver's current time",
				podCertificateClockSkew.Minutes()))}
	}
	return nil
}
