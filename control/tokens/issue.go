package tokens

import (
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Spec is what a token is to say.
type Spec struct {
	Account   *corev1.ServiceAccount
	Audiences []string
	TTL       time.Duration
	WarnAfter time.Duration // after which its use is a sign of a client that does not renew; 0: none

	// At most one of Pod and Secret is set; Node may stand alone or beside Pod.
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
}

// Signer issues service account tokens.
type Signer struct {
	Issuer string
	Keys   *Keyring
	Now    func() time.Time // nil: time.Now
}

// Issue signs a token and answers it with its expiry and its identifier (jti).
func (s *Signer) Issue(w Spec) (token string, expires time.Time, id string, err error) {
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	expires, id = now.Add(w.TTL).Truncate(time.Second), uuid.NewString()
	c := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: s.Issuer, Subject: serviceaccount.MakeUsername(w.Account.Namespace, w.Account.Name), Audience: w.Audiences, ID: id,
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(expires),
		},
		Kubernetes: kubernetesClaims{Namespace: w.Account.Namespace, ServiceAccount: objectReference{w.Account.Name, w.Account.UID}},
	}
	if w.WarnAfter > 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(w.WarnAfter))
	}
	if w.Pod != nil {
		c.Kubernetes.Pod = &objectReference{w.Pod.Name, w.Pod.UID}
	}
	if w.Secret != nil {
		c.Kubernetes.Secret = &objectReference{w.Secret.Name, w.Secret.UID}
	}
	if w.Node != nil {
		c.Kubernetes.Node = &objectReference{w.Node.Name, w.Node.UID}
	}
	t := jwt.NewWithClaims(s.Keys.method, c)
	t.Header["kid"] = s.Keys.kid
	token, err = t.SignedString(s.Keys.signer)
	if err != nil {
		return "", time.Time{}, "", fmt.Errorf("sign a token of service account %s/%s: %w", w.Account.Namespace, w.Account.Name, err)
	}
	return token, expires, id, nil
}
