package tokens

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// fetchTime is how long a node may use its token to fetch its certificate after it was issued.
	fetchTime   = 5 * time.Minute
	cleanPeriod = 30 * time.Second
)

// RequestLister lists certificate signing requests.
type RequestLister interface {
	List(ctx context.Context, o metav1.ListOptions) (*certificatesv1.CertificateSigningRequestList, error)
}

// BootstrapTokenCleaner deletes expired bootstrap tokens and retires single-use tokens whose node
// has its certificate. All work is done in the goroutine that calls Run.
type BootstrapTokenCleaner struct {
	Tokens   *BootstrapAuthenticator
	Requests RequestLister
	Log      *slog.Logger
}

// Run cleans periodically until ctx is done.
func (s *BootstrapTokenCleaner) Run(ctx context.Context) {
	tick := time.NewTicker(cleanPeriod)
	defer tick.Stop()
	for {
		if err := s.Clean(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("bootstrap token cleanup failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Clean processes all tokens and requests once.
func (s *BootstrapTokenCleaner) Clean(ctx context.Context) error {
	now := nowOf(s.Tokens.Now)
	list, err := s.Tokens.Secrets.List(ctx, metav1.ListOptions{FieldSelector: "type=" +
		string(corev1.SecretTypeBootstrapToken)})
	if err != nil {
		return fmt.Errorf("list bootstrap tokens: %w", err)
	}
	claimed := false
	for i := range list.Items {
		secret := &list.Items[i]
		claimed = claimed || secret.Annotations[ClaimedByAnnotation] != ""
		if !expired(secret, now) {
			continue
		}
		// The precondition protects a token that was extended in the meantime.
		preconditions := metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion}
		err := s.Tokens.Secrets.Delete(ctx, secret.Name, metav1.DeleteOptions{Preconditions: &preconditions})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete secret %s: %w", secret.Name, err)
		}
		s.Log.Info("expired bootstrap token deleted", "secret", secret.Name)
	}
	if !claimed {
		return nil
	}
	requests, err := s.Requests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list certificate signing requests: %w", err)
	}
	for i := range requests.Items {
		r := &requests.Items[i]
		id, ok := strings.CutPrefix(r.Spec.Username, BootstrapUserPrefix)
		if ok && len(r.Status.Certificate) > 0 {
			if err := s.Tokens.Retire(ctx, id, now.Add(fetchTime)); err != nil {
				return err
			}
		}
	}
	return nil
}
