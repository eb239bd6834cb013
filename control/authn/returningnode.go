package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// User name prefix and group of a node whose client certificate has expired. Such a node may only
// request a new certificate for its own name.
const (
	ReturningNodePrefix = "berth.dev:returning-node:"
	ReturningNodesGroup = "berth.dev:returning-nodes"
)

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// returningNodeAuthenticator authenticates nodes by recently expired client certificates. The TLS
// handshake has proved possession of the key.
type returningNodeAuthenticator struct {
	verifySignature func(*x509.Certificate) error // checks that the cluster's CA signed it
	period          time.Duration
	now             func() time.Time
}

// AuthenticateRequest returns false for any other request.
func (r *returningNodeAuthenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	c := req.TLS.PeerCertificates[0]
	name, node := strings.CutPrefix(c.Subject.CommonName, nodePrefix)
	if !node || name == "" || !slices.Equal(c.Subject.Organization, []string{nodesGroup}) ||
		!slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return nil, false, nil
	}
	if now := r.now(); !now.After(c.NotAfter) || now.After(c.NotAfter.Add(r.period)) {
		return nil, false, nil
	}
	if err := r.verifySignature(c); err != nil {
		return nil, false, err
	}
	sum := sha256.Sum256(c.Raw)
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: ReturningNodePrefix + name, Groups: []string{ReturningNodesGroup},
		Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}}, true, nil
}
