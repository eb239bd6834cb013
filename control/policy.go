package control

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"berth/control/admission"
	"berth/control/authz"
	"berth/control/tokens"
)

// addPolicy stores the default roles and priority classes before the server says
// that it is ready, and serves what others verify tokens with.
func (s *Server) addPolicy() error {
	discovery, err := tokens.NewDiscovery(s.ServiceAccountIssuer, "", s.access.keys)
	if err != nil {
		return err
	}
	discovery.Install(s.generic.Handler.NonGoRestfulMux)
	s.addBootstrapHook("rbac/bootstrap-roles", func(ctx context.Context) error { return authz.DefaultPolicy().Reconcile(ctx, s.Client) })
	s.addBootstrapHook("scheduling/bootstrap-system-priority-classes", func(ctx context.Context) error { return admission.EnsurePriorityClasses(ctx, s.Client) })
	return nil
}

// bootstrapRetryPeriod is the pause after a try to store the policy.
const bootstrapRetryPeriod = 200 * time.Millisecond

// addBootstrapHook tries until it is done: the first tries may come before the server
// answers itself.
func (s *Server) addBootstrapHook(name string, store func(ctx context.Context) error) {
	s.generic.AddPostStartHookOrDie(name, func(hook genericapiserver.PostStartHookContext) error {
		_ = wait.PollUntilContextCancel(hook, bootstrapRetryPeriod, true, func(ctx context.Context) (bool, error) {
			err := store(ctx)
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("not stored yet", "what", name, "error", err)
			}
			return err == nil, nil
		})
		return nil // a server that ends meanwhile is no failure
	})
}

// aggregateRoles keeps the cluster roles that are put together from others.
func (a *Assembly) aggregateRoles(ctx context.Context) error {
	a.access.aggregation.Run(ctx)
	return nil
}

// runTokenCleaner ends bootstrap tokens that have made their node.
func (a *Assembly) runTokenCleaner(ctx context.Context) error {
	(&tokens.BootstrapTokenCleaner{Tokens: a.access.bootstrap, Requests: a.Client.CertificatesV1().CertificateSigningRequests(), Log: a.Log}).Run(ctx)
	return nil
}
