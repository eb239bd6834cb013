package controllers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Retention of certificate signing requests, as in upstream's controller.
const (
	issuedExpiration  = time.Hour
	deniedExpiration  = time.Hour
	failedExpiration  = time.Hour
	pendingExpiration = 24 * time.Hour
)

// newCSRCleanerController deletes requests that were answered, or that stayed pending for too long.
func newCSRCleanerController(c Config) ([]*controller, error) {
	requests := c.Informers.Certificates().V1().CertificateSigningRequests()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		csr, err := requests.Lister().Get(name)
		if err != nil {
			return 0, ignoreNotFound(err)
		}
		if left := time.Until(csrDeletionTime(csr)); left > 0 {
			return left, nil
		}
		err = c.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &csr.UID}})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("delete certificate signing request %s: %w", name, err)
		}
		return 0, nil
	})
	return []*controller{ctrl}, ctrl.watch(requests.Informer(), objectKey)
}

func csrDeletionTime(csr *certificatesv1.CertificateSigningRequest) time.Time {
	deleteAt := csr.CreationTimestamp.Add(pendingExpiration)
	for _, c := range csr.Status.Conditions {
		since := c.LastUpdateTime.Time
		if since.IsZero() {
			since = csr.CreationTimestamp.Time
		}
		var expiresAt time.Time
		switch {
		case c.Type == certificatesv1.CertificateApproved && len(csr.Status.Certificate) > 0:
			expiresAt = since.Add(issuedExpiration)
			if end, ok := certificateNotAfter(csr.Status.Certificate); ok && end.Before(expiresAt) {
				expiresAt = end
			}
		case c.Type == certificatesv1.CertificateDenied:
			expiresAt = since.Add(deniedExpiration)
		case c.Type == certificatesv1.CertificateFailed:
			expiresAt = since.Add(failedExpiration)
		default:
			continue
		}
		if expiresAt.Before(deleteAt) {
			deleteAt = expiresAt
		}
	}
	return deleteAt
}

func certificateNotAfter(text []byte) (time.Time, bool) {
	block, _ := pem.Decode(text)
	if block == nil {
		return time.Time{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, false
	}
	return cert.NotAfter, true
}
