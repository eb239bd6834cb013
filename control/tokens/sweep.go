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
	// fetchTime is how long a node may take to fetch its certificate with the
	// token that asked for it.
	fetchTime   = 5 * time.Minute
	cleanPeriod = 30 * time.Second
)

// RequestLister is the part of a client that lists certificate signing requests.
type RequestLister interface {
	List(ctx context.Context, o metav1.ListOptions) (*certificatesv1.CertificateSigningRequestList, error)
}

// BootstrapTokenCleaner removes bootstrap tokens whose time is over and retires single-use
// ones whose node has its certificate. Its one goroutine is Run's caller.
type BootstrapTokenCleaner struct {
	Tokens   *BootstrapAuthenticator
	Requests RequestLister
	Log      *slog.Logger
}

// Run sweeps until ctx ends.
func (s *BootstrapTokenCleaner) Run(ctx context.Context) {
	tick := time.NewTicker(cleanPeriod)
	defer tick.Stop()
	for {
		if err := s.Clean(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("bootstrap tokens were not swept", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Clean goes once over all tokens and requests.
func (s *BootstrapTokenCleaner) Clean(ctx context.Context) error {
	now := nowOf(s.Tokens.Now)
	list, err := s.Tokens.Secrets.List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken)})
	if err != nil {
		return fmt.Errorf("list bootstrap tokens: %w", err)
	}
	claimed := false
	for i := range list.Items {
		one := &list.Items[i]
		claimed = claimed || one.Annotations[ClaimedByAnnotation] != ""
		if !expired(one, now) {
			continue
		}
		// A token whose time was made longer meanwhile stays.
		only := metav1.Preconditions{UID: &one.UID, ResourceVersion: &one.ResourceVersion}
		err := s.Tokens.Secrets.Delete(ctx, one.Name, metav1.DeleteOptions{Preconditions: &only})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("remove %s: %w", one.Name, err)
		}
		s.Log.Info("an expired bootstrap token is removed", "secret", one.Name)
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
