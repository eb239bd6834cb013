package control

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"berth/control/pki"
	"berth/control/pods"
)

// nodeClient is how the server shows itself to nodes, with connections that all who
// ask nodes share.
type nodeClient struct {
	shown                *pki.Certificate
	verified, unverified *http.Transport
}

func newNodeClient(authority, ofNodes *pki.Authority) (*nodeClient, error) {
	shown, err := authority.Certificate("node-client", pki.NodeClientSubject())
	if err != nil {
		return nil, fmt.Errorf("certificate for nodes: %w", err)
	}
	show := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(shown.CurrentCertKeyContent())
		return &pair, err
	}
	// Releases before had the authority itself sign for nodes.
	return &nodeClient{shown, pods.NodeTransport(authority.Pool(ofNodes), show), pods.NodeTransport(nil, show)}, nil
}

const (
	lookEvery = time.Hour   // at the longest, so that a clock that is set is noticed
	lookFirst = time.Second // at the shortest, also when one cannot be renewed
)

// keepCertificates renews certificates while the server runs.
func (s *Server) keepCertificates(ctx context.Context) {
	for {
		wait := min(max(time.Until(s.serving.Due()), lookFirst), max(time.Until(s.toNodes.shown.Due()), lookFirst), lookEvery, max(s.OwnCertificates/10, lookFirst))
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		for _, c := range []*pki.Certificate{s.serving, s.toNodes.shown} {
			renewed, err := c.Renew()
			if err != nil {
				s.Log.Error("renew a certificate of the server", "certificate", c.Name(), "error", err)
			}
			if renewed {
				s.Log.Info("a certificate of the server is renewed", "certificate", c.Name(), "due", c.Due())
			}
		}
		// A connection has shown the certificate of its day, and nodes look at each request.
		s.toNodes.verified.CloseIdleConnections()
		s.toNodes.unverified.CloseIdleConnections()
		if err := s.Authority.AdminKubeconfig(s.AdminKubeconfig(), s.Loopback.Host); err != nil {
			s.Log.Error("renew the administrator's kubeconfig", "error", err)
		}
	}
}
