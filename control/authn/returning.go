package authn

import (
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// A node that comes back after its certificate has expired is this user in this
// group: it may ask for another certificate of its own name and for nothing else.
const (
	ReturningPrefix = "berth.dev:returning-node:"
	ReturningNodes  = "berth.dev:returning-nodes"
)

const (
	nodePrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// returning knows nodes by certificates that have expired not too long ago. The
// handshake has proved that who shows one has its key.
type returning struct {
	made   func(*x509.Certificate) error // whether the authority has signed it
	within time.Duration
	now    func() time.Time
}

// AuthenticateRequest answers false for all but a returning node.
func (r *returning) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	c := req.TLS.PeerCertificates[0]
	name, node := strings.CutPrefix(c.Subject.CommonName, nodePrefix)
	if !node || name == "" || !slices.Equal(c.Subject.Organization, []string{nodesGroup}) || !slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return nil, false, nil
	}
	if now := r.now(); !now.After(c.NotAfter) || now.After(c.NotAfter.Add(r.within)) {
		return nil, false, nil
	}
	if err := r.made(c); err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: ReturningPrefix + name, Groups: []string{ReturningNodes}}}, true, nil
}
