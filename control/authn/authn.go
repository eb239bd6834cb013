package authn

import (
	stdx509 "crypto/x509"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
)

// Config holds the sources of identities.
type Config struct {
	// ClientCA verifies client certificates. It is called for each request, so that CA changes
	// apply without a restart. If nil, client certificates are ignored.
	ClientCA x509.VerifyOptionFunc
	// KubeletClientName is the common name of the client certificate that the API server presents
	// to kubelets. It is rejected here: such a connection means that a node has an address of the
	// API server in its status.
	KubeletClientName string
	// VerifySignature checks that this cluster's CA signed a certificate, regardless of its
	// validity period. ReturnPeriod is how long after expiration a node may use its certificate to
	// request a new one. 0 disables this.
	VerifySignature func(*stdx509.Certificate) error
	ReturnPeriod    time.Duration
	// ServiceAccountTokens and BootstrapTokens authenticate tokens. Bootstrap tokens are valid only
	// for the API server's audiences.
	ServiceAccountTokens, BootstrapTokens authenticator.Token
	// LoopbackTokens authenticates the components of the server itself, for the API server's audiences. Nil: none.
	LoopbackTokens authenticator.Token
	// RequestHeader accepts the users that a front proxy authenticates. Nil: none.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// IssuerTokens authenticates JWTs of other issuers, for the API server's audiences. WebhookTokens authenticates
	// all other tokens. Nil: none.
	IssuerTokens, WebhookTokens authenticator.Token
	// Anonymous authenticates requests without credentials. Nil: they are rejected.
	Anonymous authenticator.Request
	// Audiences are the API server's own audiences.
	Audiences authenticator.Audiences
}

// certificateUser returns the user of a verified client certificate.
func (c Config) certificateUser(chain []*stdx509.Certificate) (*authenticator.Response, bool, error) {
	if name := chain[0].Subject.CommonName; name != "" && name == c.KubeletClientName {
		return nil, false, fmt.Errorf("client certificate %q is for requests to kubelets: a node has an "+
			"address of the "+
			"API server in its status", name)
	}
	return x509.CommonNameUserConversion(chain)
}

// Authenticator authenticates requests by credentials, or as anonymous. Credentials authenticates by credentials only.
type Authenticator struct {
	authenticator.Request
	Credentials authenticator.Request
}

// New returns the request authenticator of the API server. Service account tokens and bootstrap tokens are not
// cached, so that a revoked token is rejected immediately.
func New(c Config) Authenticator {
	var authenticators []authenticator.Request
	if c.RequestHeader != nil {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			frontProxyAuthenticator(c.RequestHeader)))
	}
	if c.ClientCA != nil {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			x509.NewDynamic(c.ClientCA, x509.UserConversionFunc(c.certificateUser))))
	}
	if c.ReturnPeriod > 0 {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			&returningNodeAuthenticator{c.VerifySignature, c.ReturnPeriod, time.Now}))
	}
	tokens := c.tokens()
	authenticators = append(authenticators, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	authenticated := group.NewAuthenticatedGroupAdder(union.New(authenticators...))
	if c.Anonymous == nil {
		return Authenticator{authenticated, authenticated}
	}
	// An invalid credential is an error. The request is not downgraded to an anonymous one.
	return Authenticator{union.NewFailOnError(authenticated, c.Anonymous), authenticated}
}

// tokens returns the authenticator of bearer tokens. Those of the server come first, so that they are never sent to a
// webhook while they are valid.
func (c Config) tokens() authenticator.Token {
	sources := []authenticator.Token{c.ServiceAccountTokens, authenticator.WrapAudienceAgnosticToken(c.Audiences,
		c.BootstrapTokens)}
	if c.LoopbackTokens != nil {
		sources = slices.Insert(sources, 0, authenticator.WrapAudienceAgnosticToken(c.Audiences, c.LoopbackTokens))
	}
	own := tokenunion.NewFailOnError(sources...)
	others := slices.DeleteFunc([]authenticator.Token{c.IssuerTokens, c.WebhookTokens},
		func(t authenticator.Token) bool { return t == nil })
	if len(others) == 0 {
		return own
	}
	return tokenunion.New(slices.Insert(others, 0, own)...)
}
