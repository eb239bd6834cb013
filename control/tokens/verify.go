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

// ObjectGetter looks up the objects that tokens are bound to. A NotFound error means that the
// object does not exist in the store, not only in a cache. After any other error, this is unknown.
type ObjectGetter interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// leeway is the allowed clock skew and how long an object being deleted keeps its token valid after
// its grace period, as in upstream.
const leeway = time.Minute

// Verifier verifies service account tokens. It implements authenticator.Token.
type Verifier struct {
	Issuer    string
	Audiences []string // required audiences of requests without their own, the API server's
	Keys      *Keyring
	Objects   ObjectGetter
	Rejected  *RejectedTokens  // nil: rejected tokens are not remembered
	Now       func() time.Time // nil means time.Now
}

var errNotValid = errors.New("service account token has been invalidated")

// goneError means that an object is not in the store. A token of this object will not become valid again.
type goneError struct{ error }

// Unwrap returns the cause.
func (g goneError) Unwrap() error { return g.error }

// AuthenticateToken returns false without an error for a token of another issuer, so that another
// authenticator can handle it.
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
	target, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		target = v.Audiences
	}
	audiences := authenticator.Audiences(c.Audience).Intersect(target)
	if len(audiences) == 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", c.Audience, target)
	}
	if err := v.Rejected.get(token); err != nil {
		return nil, false, err
	}
	info, err := v.validateBindings(ctx, &c)
	if gone := (goneError{}); errors.As(err, &gone) {
		v.Rejected.add(token, err)
	}
	if err != nil {
		return nil, false, err
	}
	if after := c.Kubernetes.WarnAfter; after != nil && v.now().After(after.Time) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %.0f", c.Subject,
				v.now().Sub(after.Time).Seconds()))
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// hasIssuer compares the unverified issuer. This only selects the authenticator.
func (v *Verifier) hasIssuer(token string) bool {
	var c jwt.RegisteredClaims
	_, _, err := jwt.NewParser().ParseUnverified(token, &c)
	return err == nil && c.Issuer == v.Issuer
}

// sanitizeError preserves the cause and drops any text in which a library may quote the token
// (invariant K4).
func sanitizeError(err error) error {
	for _, known := range []error{jwt.ErrTokenExpired, jwt.ErrTokenNotValidYet, jwt.ErrTokenUsedBeforeIssued,
		jwt.ErrTokenSignatureInvalid, jwt.ErrTokenInvalidIssuer, jwt.ErrTokenRequiredClaimMissing} {
		if errors.Is(err, known) {
			return fmt.Errorf("service account %w", known)
		}
	}
	return errors.New("service account token is malformed or signed by an unknown key")
}

// validateBindings looks up all objects that the token is bound to (invariant K1).
func (v *Verifier) validateBindings(ctx context.Context, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	b := &c.Kubernetes
	if c.Subject != serviceaccount.MakeUsername(b.Namespace, b.ServiceAccount.Name) || c.ID == "" {
		return nil, errors.New("service account token has inconsistent claims")
	}
	account, err := v.Objects.ServiceAccount(ctx, b.Namespace, b.ServiceAccount.Name)
	if err := v.validateObject("service account", b.ServiceAccount, account, err); err != nil {
		return nil, err
	}
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: b.Namespace, Name: b.ServiceAccount.Name, UID: string(b.ServiceAccount.UID), CredentialID: "JTI=" +
			c.ID,
	}
	if b.Secret != nil {
		secret, err := v.Objects.Secret(ctx, b.Namespace, b.Secret.Name)
		err = v.validateObject("secret", *b.Secret, secret, err)
		if errors.Is(err, errNotValid) {
			return nil, goneError{err} // secrets are not cached
		}
		if err != nil {
			return nil, err
		}
	}
	if b.Pod != nil {
		pod, err := v.Objects.Pod(ctx, b.Namespace, b.Pod.Name)
		if err := v.validateObject("pod", *b.Pod, pod, err); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = b.Pod.Name, string(b.Pod.UID)
	}
	if b.Node != nil {
		// The node of a pod-bound token is informational. Validity depends on the pod.
		if b.Pod == nil {
			node, err := v.Objects.Node(ctx, b.Node.Name)
			if err := v.validateObject("node", *b.Node, node, err); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = b.Node.Name, string(b.Node.UID)
	}
	return info, nil
}

// validateObject checks that the object found is the one that the token is bound to. A failed
// lookup also rejects the token.
func (v *Verifier) validateObject(what string, want objectReference, got metav1.Object, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return goneError{fmt.Errorf("%w: %s %s not found", errNotValid, what, want.Name)}
	case err != nil:
		return fmt.Errorf("get %s %s of token: %w", what, want.Name, err)
	case got.GetUID() != want.UID:
		return fmt.Errorf("%w: UID of %s %s has changed", errNotValid, what, want.Name)
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
