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

// kubeletClient is how the server shows itself to nodes, with connections that all who
// ask nodes share.
type kubeletClient struct {
	certificate          *pki.Certificate
	verified, unverified *http.Transport
}

func newKubeletClient(authority, ofNodes *pki.Authority) (*kubeletClient, error) {
	shown, err := authority.Certificate("node-client", pki.KubeletClientSubject())
	if err != nil {
		return nil, fmt.Errorf("certificate for nodes: %w", err)
	}
	show := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(shown.CurrentCertKeyContent())
		return &pair, err
	}
	// Releases before had the authority itself sign for nodes.
	return &kubeletClient{shown, pods.NewKubeletTransport(authority.Pool(ofNodes), show), pods.NewKubeletTransport(nil, show)}, nil
}

const (
	maxRenewalCheckInterval = time.Hour   // at the longest, so that a clock that is set is noticed
	minRenewalCheckInterval = time.Second // at the shortest, also when one cannot be renewed
)

// renewCertificates renews certificates while the server runs.
func (s *Server) renewCertificates(ctx context.Context) {
	for {
		wait := min(max(time.Until(s.serving.RenewAt()), minRenewalCheckInterval), max(time.Until(s.kubeletClient.certificate.RenewAt()), minRenewalCheckInterval), maxRenewalCheckInterval, max(s.OwnCertificateDuration/10, minRenewalCheckInterval))
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		for _, c := range []*pki.Certificate{s.serving, s.kubeletClient.certificate} {
			renewed, err := c.Renew()
			if err != nil {
				s.Log.Error("renew a certificate of the server", "certificate", c.Name(), "error", err)
			}
			if renewed {
				s.Log.Info("a certificate of the server is renewed", "certificate", c.Name(), "due", c.RenewAt())
			}
		}
		// A connection has shown the certificate of its day, and nodes look at each request.
		s.kubeletClient.verified.CloseIdleConnections()
		s.kubeletClient.unverified.CloseIdleConnections()
		if err := s.Authority.AdminKubeconfig(s.AdminKubeconfig(), s.Loopback.Host); err != nil {
			s.Log.Error("renew the administrator's kubeconfig", "error", err)
		}
	}
}
