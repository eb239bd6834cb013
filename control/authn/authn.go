package authn

import (
	stdx509 "crypto/x509"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
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

// anonymousPaths are the only paths that allow anonymous requests: those of the ClusterRole
// system:public-info-viewer.
var anonymousPaths = []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}

// New returns the request authenticator of the API server. Tokens are not cached, so that a revoked
// token is rejected immediately.
func New(c Config) authenticator.Request {
	var authenticators []authenticator.Request
	if c.ClientCA != nil {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			x509.NewDynamic(c.ClientCA, x509.UserConversionFunc(c.certificateUser))))
	}
	if c.ReturnPeriod > 0 {
		authenticators = append(authenticators, authenticator.WrapAudienceAgnosticRequest(c.Audiences,
			&returningNodeAuthenticator{c.VerifySignature, c.ReturnPeriod, time.Now}))
	}
	sources := []authenticator.Token{c.ServiceAccountTokens, authenticator.WrapAudienceAgnosticToken(c.Audiences,
		c.BootstrapTokens)}
	if c.LoopbackTokens != nil {
		sources = slices.Insert(sources, 0, authenticator.WrapAudienceAgnosticToken(c.Audiences, c.LoopbackTokens))
	}
	tokens := tokenunion.NewFailOnError(sources...)
	authenticators = append(authenticators, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	authenticated := group.NewAuthenticatedGroupAdder(union.New(authenticators...))
	var conditions []apiserver.AnonymousAuthCondition
	for _, p := range anonymousPaths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: p})
	}
	// An invalid credential is an error even on the anonymous paths. The request is not downgraded
	// to an anonymous one.
	return union.NewFailOnError(authenticated, anonymous.NewAuthenticator(conditions))
}
