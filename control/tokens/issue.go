package tokens

import (
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Spec describes a token to issue.
type Spec struct {
	Account   *corev1.ServiceAccount
	Audiences []string
	TTL       time.Duration
	WarnAfter time.Duration // use after this time indicates a client that does not reload its token; 0 disables it

	// At most one of Pod and Secret is set. Node can be set alone or with Pod.
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
}

// Signer issues service account tokens.
type Signer struct {
	Issuer string
	Keys   *Keyring
	Now    func() time.Time // nil means time.Now
}

// Issue signs a token. It returns the token, its expiration time and its identifier (jti).
func (s *Signer) Issue(spec Spec) (token string, expires time.Time, id string, err error) {
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	expires, id = now.Add(spec.TTL).Truncate(time.Second), uuid.NewString()
	c := claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: s.Issuer, Subject: serviceaccount.MakeUsername(spec.Account.Namespace, spec.Account.Name),
			Audience: spec.Audiences, ID: id,
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now),
			ExpiresAt: jwt.NewNumericDate(expires),
		},
		Kubernetes: kubernetesClaims{Namespace: spec.Account.Namespace,
			ServiceAccount: objectReference{spec.Account.Name,
				spec.Account.UID}},
	}
	if spec.WarnAfter > 0 {
		c.Kubernetes.WarnAfter = jwt.NewNumericDate(now.Add(spec.WarnAfter))
	}
	if spec.Pod != nil {
		c.Kubernetes.Pod = &objectReference{spec.Pod.Name, spec.Pod.UID}
	}
	if spec.Secret != nil {
		c.Kubernetes.Secret = &objectReference{spec.Secret.Name, spec.Secret.UID}
	}
	if spec.Node != nil {
		c.Kubernetes.Node = &objectReference{spec.Node.Name, spec.Node.UID}
	}
	t := jwt.NewWithClaims(s.Keys.method, c)
	t.Header["kid"] = s.Keys.kid
	token, err = t.SignedString(s.Keys.signer)
	if err != nil {
		return "", time.Time{}, "", fmt.Errorf("sign token of service account %s/%s: %w", spec.Account.Namespace,
			spec.Account.Name, err)
	}
	return token, expires, id, nil
}

// claims is the payload of a service account token: the registered claims of RFC 7519 and
// Kubernetes' private claims.
type claims struct {
	jwt.RegisteredClaims

	Kubernetes kubernetesClaims `json:"kubernetes.io"`
}

type kubernetesClaims struct {
	Namespace      string           `json:"namespace"`
	Node           *objectReference `json:"node,omitempty"`
	Pod            *objectReference `json:"pod,omitempty"`
	Secret         *objectReference `json:"secret,omitempty"`
	ServiceAccount objectReference  `json:"serviceaccount"`
	// WarnAfter is when a token with an extended lifetime should have been renewed.
	WarnAfter *jwt.NumericDate `json:"warnafter,omitempty"`
}

// objectReference identifies an object by name and UID.
type objectReference struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}
