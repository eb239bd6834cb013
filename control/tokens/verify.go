package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// ObjectGetter looks up what a token is bound to. An error that apierrors.IsNotFound
// means that it is gone; any other that nobody could say.
type ObjectGetter interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// leeway is how long a bound object that is being deleted still vouches for its
// token past its grace, and how far clocks may differ: as Kubernetes has it.
const leeway = time.Minute

// Verifier checks service account tokens. It is an authenticator.Token.
type Verifier struct {
	Issuer    string
	Audiences []string // what a token without a wish of its own is for: the API server
	Keys      *Keyring
	Objects   ObjectGetter
	Now       func() time.Time // nil: time.Now
}

var errNotValid = errors.New("service account token has been invalidated")

// AuthenticateToken answers false without an error for a token that is not of
// this server's making, so that another authenticator may know it.
func (v *Verifier) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !v.hasIssuer(token) {
		return nil, false, nil
	}
	var c claims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"ES256", "RS256"}), jwt.WithIssuer(v.Issuer),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(v.now), jwt.WithStrictDecoding())
	if _, err := parser.ParseWithClaims(token, &c, v.Keys.verificationKey); err != nil {
		return nil, false, sanitizeError(err)
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = v.Audiences
	}
	audiences := authenticator.Audiences(c.Audience).Intersect(wanted)
	if len(audiences) == 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", c.Audience, wanted)
	}
	who, err := v.validateBindings(ctx, &c)
	if err != nil {
		return nil, false, err
	}
	if after := c.Kubernetes.WarnAfter; after != nil && v.now().After(after.Time) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %.0f", c.Subject, v.now().Sub(after.Time).Seconds()))
	}
	return &authenticator.Response{User: who.UserInfo(), Audiences: audiences}, true, nil
}

// hasIssuer looks at the issuer only, unverified: it decides who answers, not what.
func (v *Verifier) hasIssuer(token string) bool {
	var c jwt.RegisteredClaims
	_, _, err := jwt.NewParser().ParseUnverified(token, &c)
	return err == nil && c.Issuer == v.Issuer
}

// sanitizeError keeps the cause and drops what a library may quote of the token (K4).
func sanitizeError(err error) error {
	for _, known := range []error{jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued, jwt.ErrTokenSignatureInvalid, jwt.ErrTokenInvalidIssuer, jwt.ErrTokenRequiredClaimMissing} {
		if errors.Is(err, known) {
			return fmt.Errorf("service account %w", known)
		}
	}
	return errors.New("service account token is malformed or signed by an unknown key")
}

// validateBindings looks up all that the token is bound to (K1).
func (v *Verifier) validateBindings(ctx context.Context, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	b := &c.Kubernetes
	if c.Subject != serviceaccount.MakeUsername(b.Namespace, b.ServiceAccount.Name) || c.ID == "" {
		return nil, errors.New("service account token contradicts itself")
	}
	account, err := v.Objects.ServiceAccount(ctx, b.Namespace, b.ServiceAccount.Name)
	if err := v.validateObject("service account", b.ServiceAccount, account, err); err != nil {
		return nil, err
	}
	who := &serviceaccount.ServiceAccountInfo{
		Namespace: b.Namespace, Name: b.ServiceAccount.Name, UID: string(b.ServiceAccount.UID), CredentialID: "JTI=" + c.ID,
	}
	if b.Secret != nil {
		secret, err := v.Objects.Secret(ctx, b.Namespace, b.Secret.Name)
		if err := v.validateObject("secret", *b.Secret, secret, err); err != nil {
			return nil, err
		}
	}
	if b.Pod != nil {
		pod, err := v.Objects.Pod(ctx, b.Namespace, b.Pod.Name)
		if err := v.validateObject("pod", *b.Pod, pod, err); err != nil {
			return nil, err
		}
		who.PodName, who.PodUID = b.Pod.Name, string(b.Pod.UID)
	}
	if b.Node != nil {
		// A pod's token names its node for the record; the pod alone vouches.
		if b.Pod == nil {
			node, err := v.Objects.Node(ctx, b.Node.Name)
			if err := v.validateObject("node", *b.Node, node, err); err != nil {
				return nil, err
			}
		}
		who.NodeName, who.NodeUID = b.Node.Name, string(b.Node.UID)
	}
	return who, nil
}

// validateObject says whether the object found is the one that the token was bound to. A
// lookup that failed refuses the token too, with its cause.
func (v *Verifier) validateObject(what string, want objectReference, got metav1.Object, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: %s %s is gone", errNotValid, what, want.Name)
	case err != nil:
		return fmt.Errorf("look up %s %s of a token: %w", what, want.Name, err)
	case got.GetUID() != want.UID:
		return fmt.Errorf("%w: %s %s is another one now", errNotValid, what, want.Name)
	}
	if d := got.GetDeletionTimestamp(); d != nil && d.Add(leeway).Before(v.now()) {
		return fmt.Errorf("%w: %s %s has been deleted", errNotValid, what, want.Name)
	}
	return nil
}

func (v *Verifier) now() time.Time {
	if v.Now != nil {
		return v.Now()
	}
	return time.Now()
}
