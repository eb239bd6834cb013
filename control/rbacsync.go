package control

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"berth/control/authz"
	"berth/control/pki"
)

// syncPollPeriod is how often the state of a cache is checked.
const syncPollPeriod = 10 * time.Millisecond

// syncedAuthorizer delays requests until the caches of roles and bindings are filled, which takes a moment after the
// start of the server. Otherwise it would reject the administrator's requests in this time.
type syncedAuthorizer struct {
	authorizer.Authorizer

	synced    []cache.InformerSynced
	hasSynced atomic.Bool
}

func newSyncedAuthorizer(rbac authorizer.Authorizer, f informers.SharedInformerFactory) *syncedAuthorizer {
	v1 := f.Rbac().V1()
	return &syncedAuthorizer{Authorizer: rbac, synced: []cache.InformerSynced{
		v1.Roles().Informer().HasSynced, v1.RoleBindings().Informer().HasSynced,
		v1.ClusterRoles().Informer().HasSynced, v1.ClusterRoleBindings().Informer().HasSynced,
	}}
}

// Authorize waits until the caches are filled or ctx is done.
func (s *syncedAuthorizer) Authorize(ctx context.Context,
	a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !s.hasSynced.Load() {
		err := wait.PollUntilContextCancel(ctx, syncPollPeriod, true, func(context.Context) (bool, error) {
			for _, synced := range s.synced {
				if !synced() {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("roles and bindings are not loaded: %w", err)
		}
		s.hasSynced.Store(true)
	}
	return s.Authorizer.Authorize(ctx, a)
}

// ensureAdminBinding creates the administrator's binding after the default roles, and waits until the authorizer has
// observed a new one. The server is not ready before.
func (s *Server) ensureAdminBinding(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("wait for default roles: %w", ctx.Err())
	case <-s.access.policyStored:
	}
	first, err := authz.EnsureAdminBinding(ctx, s.Client, pki.AdminsGroup)
	if err != nil || !first {
		return err
	}
	return wait.PollUntilContextCancel(ctx, syncPollPeriod, true, func(ctx context.Context) (bool, error) {
		if s.access.rbac.ObservesAdminBinding() {
			return true, nil
		}
		// A binding that was deleted in the meantime will not be observed.
		_, err := s.Client.RbacV1().ClusterRoleBindings().Get(ctx, authz.AdminBinding, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
