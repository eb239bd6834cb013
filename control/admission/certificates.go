package admission

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"berth/control/tokens"
)

// signerPermission requires a verb on the signer of a certificate signing request for changes of
// one of its subresources.
type signerPermission struct {
	*admission.Handler

	authorizer        authorizer.Authorizer
	subresource, verb string
	message           string
	changed           func(old, now *certificatesv1.CertificateSigningRequest) bool
}

func newApproval(c Config) (admission.Interface, error) {
	return &signerPermission{admission.NewHandler(admission.Update), c.Authorizer, "approval", "approve",
		"user not permitted to approve requests with signerName %q",
		func(_, _ *certificatesv1.CertificateSigningRequest) bool { return true }}, nil
}

func newSigning(c Config) (admission.Interface, error) {
	return &signerPermission{admission.NewHandler(admission.Update), c.Authorizer, "status", "sign",
		"user not permitted to sign requests with signerName %q",
		func(old, now *certificatesv1.CertificateSigningRequest) bool {
			return !equality.Semantic.DeepEqual(old.Status.Certificate, now.Status.Certificate) ||
				!equality.Semantic.DeepEqual(old.Status.Conditions, now.Status.Conditions)
		}}, nil
}

// Validate requires the verb on the signer or on all signers of its domain.
func (s *signerPermission) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if isResource(a, certificatesv1.GroupName, "podcertificaterequests") && s.verb == "sign" {
		return s.podCertificate(ctx, a)
	}
	if !isResource(a, certificatesv1.GroupName, "certificatesigningrequests") || a.GetSubresource() != s.subresource {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	now, newOK := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok || !newOK || !s.changed(old, now) {
		return nil
	}
	if permitsSigner(ctx, s.authorizer, a.GetUserInfo(), s.verb, old.Spec.SignerName) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf(s.message, old.Spec.SignerName))
}

// podCertificate requires the verb for changes of the status of a PodCertificateRequest.
func (s *signerPermission) podCertificate(ctx context.Context, a admission.Attributes) error {
	old, ok := a.GetOldObject().(*certificatesv1.PodCertificateRequest)
	now, newOK := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok || !newOK || a.GetSubresource() != s.subresource || equality.Semantic.DeepEqual(old.Status, now.Status) ||
		permitsSigner(ctx, s.authorizer, a.GetUserInfo(), s.verb, old.Spec.SignerName) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf(s.message, old.Spec.SignerName))
}

// permitsSigner reports whether a user has a verb on a signer, or on all signers of its domain.
func permitsSigner(ctx context.Context, by authorizer.Authorizer, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		d, _, err := by.Authorize(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, APIGroup: certificatesv1.GroupName, APIVersion: "*",
			Resource: "signers",
			Name:     name, ResourceRequest: true,
		})
		if err == nil && d == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// trustBundleAttest requires the verb attest on the signer of a ClusterTrustBundle for its creation and changes.
type trustBundleAttest struct {
	*admission.Handler

	authorizer authorizer.Authorizer
}

func newTrustBundleAttest(c Config) (admission.Interface, error) {
	return trustBundleAttest{admission.NewHandler(admission.Create, admission.Update), c.Authorizer}, nil
}

// Validate checks the new object: its signer cannot differ from the old one's. Changes that the garbage collector makes
// need no permission.
func (t trustBundleAttest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	b, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok || !isResource(a, certificatesv1.GroupName, "clustertrustbundles") || b.Spec.SignerName == "" {
		return nil
	}
	if old, ok := a.GetOldObject().(*certificatesv1.ClusterTrustBundle); ok && changesOwnersOnly(b, old) {
		return nil
	}
	if permitsSigner(ctx, t.authorizer, a.GetUserInfo(), "attest", b.Spec.SignerName) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("user not permitted to attest for signerName %q", b.Spec.SignerName))
}

// changesOwnersOnly reports whether only owner references and finalizers differ.
func changesOwnersOnly(b, old *certificatesv1.ClusterTrustBundle) bool {
	b, old = b.DeepCopy(), old.DeepCopy()
	for _, o := range []*certificatesv1.ClusterTrustBundle{b, old} {
		o.OwnerReferences, o.Finalizers, o.ManagedFields = nil, nil, nil
	}
	return equality.Semantic.DeepEqual(b, old)
}

// subjectRestriction prevents client certificates with the group system:masters.
type subjectRestriction struct{ *admission.Handler }

func newSubjectRestriction(Config) (admission.Interface, error) {
	return subjectRestriction{admission.NewHandler(admission.Create)}, nil
}

// Validate rejects requests with the group system:masters.
func (subjectRestriction) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r, ok := signingRequest(a)
	if !ok || r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := parseRequest(r.Spec.Request)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to parse CSR: %w", err))
	}
	if slices.Contains(parsed.Subject.Organization, "system:masters") {
		return admission.NewForbidden(a, fmt.Errorf("use of %s signer with system:masters group is not allowed",
			r.Spec.SignerName))
	}
	return nil
}

func signingRequest(a admission.Attributes) (*certificatesv1.CertificateSigningRequest, bool) {
	if !isResource(a, certificatesv1.GroupName, "certificatesigningrequests") || a.GetSubresource() != "" {
		return nil, false
	}
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	return r, ok
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// bootstrapTokenUse binds a single-use bootstrap token to the identity (node name and key) of the
// first certificate signing request made with it. It runs late in the chain, so that a request
// rejected by another plugin does not use up the token.
type bootstrapTokenUse struct {
	*admission.Handler

	tokens *tokens.BootstrapAuthenticator
}

func newBootstrapTokenUse(c Config) (admission.Interface, error) {
	return &bootstrapTokenUse{admission.NewHandler(admission.Create), c.Bootstrap}, nil
}

// Validate claims the bootstrap token of the requester, if the request uses one.
func (b *bootstrapTokenUse) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	id, ok := strings.CutPrefix(a.GetUserInfo().GetName(), tokens.BootstrapUserPrefix)
	r, about := signingRequest(a)
	if !ok || !about {
		return nil
	}
	parsed, err := parseRequest(r.Spec.Request)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("failed to parse CSR: %w", err))
	}
	if names := a.GetUserInfo().GetExtra()[tokens.ForNodeKey]; len(names) > 0 &&
		parsed.Subject.CommonName != "system:node:"+names[0] {
		return admission.NewForbidden(a, fmt.Errorf("bootstrap token %s is for node %q only", id, names[0]))
	}
	sum := sha256.Sum256(parsed.RawSubjectPublicKeyInfo)
	if err := b.tokens.Claim(ctx, id, parsed.Subject.CommonName+" "+hex.EncodeToString(sum[:]),
		a.IsDryRun()); err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}
