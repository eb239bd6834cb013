package tokens

import (
	"time"

	"github.com/golang-jwt/jwt/v5"
	corev1 "k8s.io/api/core/v1"
)

// secretTokenTTL is the lifetime of a token in a secret. It is long, because users copy these
// tokens once.
const secretTokenTTL = 10 * 365 * 24 * time.Hour

// SecretTokenSigner signs the tokens in secrets of type kubernetes.io/service-account-token. A
// token is valid as long as its secret and service account exist.
type SecretTokenSigner struct {
	Signer    *Signer
	Audiences []string      // the API server's audiences
	MaxTTL    time.Duration // upper limit of the lifetime; 0 means ten years
}

// Sign issues the token of a secret.
func (s *SecretTokenSigner) Sign(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	ttl := secretTokenTTL
	if s.MaxTTL > 0 {
		ttl = min(ttl, s.MaxTTL)
	}
	token, _, _, err := s.Signer.Issue(Spec{Account: account, Audiences: s.Audiences, TTL: ttl, Secret: secret})
	return token, err
}

// RenewAt returns when the token must be signed again: after 80 % of its lifetime. It returns the
// zero time for a token that is not valid for this account and secret.
func (s *SecretTokenSigner) RenewAt(token string, account *corev1.ServiceAccount, secret *corev1.Secret) time.Time {
	var c claims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"ES256", "RS256"}), jwt.WithIssuer(s.Signer.Issuer),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(func() time.Time { return nowOf(s.Signer.Now) }),
		jwt.WithStrictDecoding())
	if _, err := parser.ParseWithClaims(token, &c, s.Signer.Keys.verificationKey); err != nil || c.IssuedAt == nil {
		return time.Time{}
	}
	b := c.Kubernetes
	if b.Secret == nil || *b.Secret != (objectReference{secret.Name, secret.UID}) ||
		b.ServiceAccount != (objectReference{
			account.Name, account.UID}) {
		return time.Time{}
	}
	return c.IssuedAt.Add(c.ExpiresAt.Sub(c.IssuedAt.Time) / 5 * 4)
}
