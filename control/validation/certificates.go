package validation

import (
	"crypto/x509"
	"encoding/pem"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const minCertificateTime = 600 // in seconds

// request validates a CertificateSigningRequest. Whether it is approved is decided elsewhere.
func (k *validator) request(r *certificatesv1.CertificateSigningRequest) {
	block, _ := pem.Decode(r.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		k.Invalid(spec.Child("request"), r.Spec.Request, "PEM block type must be CERTIFICATE REQUEST")
	} else if _, err := x509.ParseCertificateRequest(block.Bytes); err != nil {
		k.Invalid(spec.Child("request"), r.Spec.Request, "%s", err)
	}
	k.signer(spec.Child("signerName"), r.Spec.SignerName)
	if r.Spec.SignerName == "kubernetes.io/legacy-unknown" {
		k.Invalid(spec.Child("signerName"), r.Spec.SignerName,
			"the legacy signerName is not allowed via this API version")
	}
	usages := spec.Child("usages")
	if len(r.Spec.Usages) == 0 {
		k.Required(usages, "usages is required for all v1 CSRs")
	}
	for i, u := range r.Spec.Usages {
		if !slices.Contains(keyUsages, u) {
			k.Add(field.NotSupported(usages.Index(i), u, keyUsages))
		}
		if slices.Contains(r.Spec.Usages[:i], u) {
			k.Add(field.Duplicate(usages.Index(i), u))
		}
	}
	if s := r.Spec.ExpirationSeconds; s != nil && *s < minCertificateTime {
		k.Invalid(spec.Child("expirationSeconds"), *s, "may not specify a duration less than 600 seconds (10 minutes)")
	}
}

var keyUsages = []certificatesv1.KeyUsage{
	certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
	certificatesv1.UsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment, certificatesv1.UsageCertSign,
	certificatesv1.UsageCRLSign,
	certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly, certificatesv1.UsageAny,
	certificatesv1.UsageServerAuth,
	certificatesv1.UsageClientAuth, certificatesv1.UsageCodeSigning, certificatesv1.UsageEmailProtection,
	certificatesv1.UsageSMIME,
	certificatesv1.UsageIPsecEndSystem, certificatesv1.UsageIPsecTunnel, certificatesv1.UsageIPsecUser,
	certificatesv1.UsageTimestamping,
	certificatesv1.UsageOCSPSigning, certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC,
}

var anyStatus = []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}

func (k *validator) requestStatus(r, old *certificatesv1.CertificateSigningRequest) {
	if current := old.Status.Certificate; len(current) > 0 &&
		!equality.Semantic.DeepEqual(r.Status.Certificate, current) {
		k.Forbidden(
			status.Child("certificate"),
			"updates may not set certificate content if existing certificate content is not empty",
		)
	}
	if message := certificateError(r.Status.Certificate); message != "" &&
		!equality.Semantic.DeepEqual(r.Status.Certificate, old.Status.Certificate) {
		k.Invalid(status.Child("certificate"), "<certificate data>", "%s", message)
	}
	contains := func(
		list []certificatesv1.CertificateSigningRequestCondition,
		kind certificatesv1.RequestConditionType,
	) bool {
		return slices.ContainsFunc(
			list,
			func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind },
		)
	}
	at := status.Child("conditions")
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range r.Status.Conditions {
		switch {
		case c.Type == "":
			k.Required(at.Index(i).Child("type"), "")
		case seen[c.Type]:
			k.Add(field.Duplicate(at.Index(i).Child("type"), c.Type))
		}
		seen[c.Type] = true
		states := anyStatus
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			states = anyStatus[:1]
		}
		switch {
		case c.Status == "":
			k.Required(at.Index(i).Child("status"), "")
		case !slices.Contains(states, c.Status):
			k.Add(field.NotSupported(at.Index(i).Child("status"), c.Status, states))
		}
	}
	if contains(r.Status.Conditions, certificatesv1.CertificateApproved) &&
		contains(r.Status.Conditions, certificatesv1.CertificateDenied) {
		k.Invalid(at, certificatesv1.CertificateDenied, "Approved and Denied conditions are mutually exclusive")
	}
	for _, c := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		if contains(old.Status.Conditions, c) && !contains(r.Status.Conditions, c) {
			k.Forbidden(at, "updates may not remove a condition of type \""+string(c)+"\"")
		}
	}
}

// certificateError returns what is wrong with issued certificates in PEM format, or "". None are right.
func certificateError(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	blocks := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		blocks++
		if block.Type != "CERTIFICATE" {
			return "only CERTIFICATE PEM blocks are allowed, found \"" + block.Type + "\""
		}
		if len(block.Headers) != 0 {
			return "no PEM block headers are permitted"
		}
		if certificates, err := x509.ParseCertificates(block.Bytes); err != nil {
			return err.Error()
		} else if len(certificates) == 0 {
			return "found CERTIFICATE PEM block containing 0 certificates"
		}
	}
	if blocks == 0 {
		return "must contain at least one CERTIFICATE PEM block"
	}
	return ""
}
