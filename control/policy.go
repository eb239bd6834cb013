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

// addPolicy creates the default cluster roles and priority classes before the server becomes ready,
// and serves service account issuer discovery.
func (s *Server) addPolicy() error {
	discovery, err := tokens.NewDiscovery(s.ServiceAccountIssuer, s.ServiceAccountJWKSURI, s.access.keys)
	if err != nil {
		return err
	}
	discovery.Install(s.generic.Handler.NonGoRestfulMux)
	s.addBootstrapHook(
		"rbac/bootstrap-roles",
		func(ctx context.Context) error {
			err := authz.DefaultPolicy().Reconcile(ctx, s.Client)
			if err == nil {
				close(s.access.policyStored)
			}
			return err
		},
	)
	s.addBootstrapHook("rbac/bootstrap-admin-binding", s.ensureAdminBinding)
	s.generic.AddPostStartHookOrDie("load-bootstrap-tokens", func(hook genericapiserver.PostStartHookContext) error {
		s.access.tokenCache.Start(hook)
		return nil
	})
	s.addBootstrapHook(
		"scheduling/bootstrap-system-priority-classes",
		func(ctx context.Context) error { return admission.EnsurePriorityClasses(ctx, s.Client) },
	)
	return nil
}

// bootstrapRetryPeriod is the delay between attempts to create the default objects.
const bootstrapRetryPeriod = 200 * time.Millisecond

// addBootstrapHook retries store until it succeeds. The first attempts may fail because the server
// does not serve requests yet.
func (s *Server) addBootstrapHook(name string, store func(ctx context.Context) error) {
	s.generic.AddPostStartHookOrDie(name, func(hook genericapiserver.PostStartHookContext) error {
		_ = wait.PollUntilContextCancel(hook, bootstrapRetryPeriod, true, func(ctx context.Context) (bool, error) {
			err := store(ctx)
			if err != nil && ctx.Err() == nil {
				s.Log.Warn("bootstrap objects not created; retrying", "hook", name, "err", err)
			}
			return err == nil, nil
		})
		return nil // A shutdown in the meantime is not an error.
	})
}

// aggregateRoles maintains aggregated cluster roles.
func (a *Assembly) aggregateRoles(ctx context.Context) error {
	a.access.aggregation.Run(ctx)
	return nil
}

// runTokenCleaner expires single-use bootstrap tokens whose node has joined.
func (a *Assembly) runTokenCleaner(ctx context.Context) error {
	(&tokens.BootstrapTokenCleaner{Tokens: a.access.bootstrap,
		Requests: a.Client.CertificatesV1().CertificateSigningRequests(), Log: a.Log}).Run(ctx)
	return nil
}
