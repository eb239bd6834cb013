package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"berth/control/pki"
	"berth/control/pods"
)

// kubeletClient holds the client certificate for requests to kubelets and the transports that all
// callers share.
type kubeletClient struct {
	certificate *pki.Certificate
	verified    *pods.KubeletTransports
	unverified  *http.Transport
}

func newKubeletClient(authority, nodeAuthority *pki.Authority) (*kubeletClient, error) {
	certificate, err := authority.Certificate("node-client", pki.KubeletClientSubject())
	if err != nil {
		return nil, fmt.Errorf("kubelet client certificate: %w", err)
	}
	getCertificate := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(certificate.CurrentCertKeyContent())
		return &pair, err
	}
	// Earlier releases signed the serving certificates of nodes with the cluster's authority.
	return &kubeletClient{
		certificate,
		pods.NewKubeletTransports(authority.Pool(nodeAuthority), getCertificate),
		pods.NewUnverifiedKubeletTransport(getCertificate),
	}, nil
}

const (
	maxRenewalCheckInterval = time.Hour   // upper bound, to detect changes of the system clock
	minRenewalCheckInterval = time.Second // lower bound, which also applies after a failed renewal
)

// renewCertificates renews the server's certificates and the administrator kubeconfigs until ctx is
// done.
func (s *Server) renewCertificates(ctx context.Context) {
	for {
		wait := min(
			max(time.Until(s.serving.RenewAt()), minRenewalCheckInterval),
			max(time.Until(s.kubeletClient.certificate.RenewAt()), minRenewalCheckInterval),
			max(time.Until(s.frontProxy.certificate.RenewAt()), minRenewalCheckInterval),
			maxRenewalCheckInterval,
			max(s.OwnCertificateDuration/10, minRenewalCheckInterval),
		)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		for _, c := range []*pki.Certificate{s.serving, s.kubeletClient.certificate, s.frontProxy.certificate} {
			renewed, err := c.Renew()
			if err != nil {
				s.Log.Error("certificate renewal failed", "certificate", c.Name(), "err", err)
			}
			if renewed {
				s.Log.Info("certificate renewed", "certificate", c.Name(), "due", c.RenewAt())
			}
		}
		// Nodes check the certificate for each request, and existing connections use the old one.
		s.kubeletClient.verified.CloseIdleConnections()
		s.kubeletClient.unverified.CloseIdleConnections()
		if err := s.writeKubeconfigs(); err != nil {
			s.Log.Error("administrator kubeconfig renewal failed", "err", err)
		}
	}
}

// writeKubeconfigs writes the kubeconfigs of the administrator, and that for emergencies.
func (s *Server) writeKubeconfigs() error {
	return errors.Join(
		s.Authority.WriteKubeconfig(s.AdminKubeconfig(), s.Loopback.Host, pki.AdminSubject()),
		s.Authority.WriteKubeconfig(s.SuperAdminKubeconfig(), s.Loopback.Host, pki.SuperAdminSubject()),
	)
}
