package authn

import (
	stdx509 "crypto/x509"
	"fmt"
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

// Config is what identities are checked against.
type Config struct {
	// ClientCA verifies client certificates; asked at each request, so that a
	// new CA needs no restart. nil: certificates name nobody.
	ClientCA x509.VerifyOptionFunc
	// KubeletClientName is the name in the certificate that servers show to nodes. Here it names
	// nobody: only a node that has given a server's address for its own has one sent here.
	KubeletClientName string
	// VerifySignature tells whether our authority has signed a certificate, whatever the time is;
	// Return is how long after its end one still names a returning node. 0: not at all.
	VerifySignature func(*stdx509.Certificate) error
	ReturnPeriod    time.Duration
	// ServiceAccountTokens knows service account tokens and what audience each is for;
	// Bootstrap knows bootstrap tokens, which are for the API server only.
	ServiceAccountTokens, BootstrapTokens authenticator.Token
	// Audiences are those of the API server itself.
	Audiences authenticator.Audiences
}

// certificateUser is whom a certificate of the authority names.
func (c Config) certificateUser(chain []*stdx509.Certificate) (*authenticator.Response, bool, error) {
	if name := chain[0].Subject.CommonName; name != "" && name == c.KubeletClientName {
		return nil, false, fmt.Errorf("the certificate of %s is for nodes: a node has this server's address in its status", name)
	}
	return x509.CommonNameUserConversion(chain)
}

// anonymousPaths are all that is answered without a name.
var anonymousPaths = []string{"/healthz", "/livez", "/readyz"}

// New answers who sends a request. Tokens are never cached: one that is revoked
// is refused at once.
func New(c Config) authenticator.Request {
	var known []authenticator.Request
	if c.ClientCA != nil {
		known = append(known, authenticator.WrapAudienceAgnosticRequest(c.Audiences, x509.NewDynamic(c.ClientCA, x509.UserConversionFunc(c.certificateUser))))
	}
	if c.ReturnPeriod > 0 {
		known = append(known, authenticator.WrapAudienceAgnosticRequest(c.Audiences, &returningNodeAuthenticator{c.VerifySignature, c.ReturnPeriod, time.Now}))
	}
	tokens := tokenunion.NewFailOnError(c.ServiceAccountTokens, authenticator.WrapAudienceAgnosticToken(c.Audiences, c.BootstrapTokens))
	known = append(known, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	named := group.NewAuthenticatedGroupAdder(union.New(known...))
	var open []apiserver.AnonymousAuthCondition
	for _, p := range anonymousPaths {
		open = append(open, apiserver.AnonymousAuthCondition{Path: p})
	}
	// A bad credential is an error even on the open paths: it is never
	// silently taken for none.
	return union.NewFailOnError(named, anonymous.NewAuthenticator(open))
}
