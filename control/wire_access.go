package control

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"berth/control/authn"
	"berth/control/authz"
	"berth/control/metrics"
	"berth/control/pki"
	"berth/control/pods"
	"berth/control/tokens"
)

// healthPaths are accessible without authentication.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// serverID identifies this server in the labels of metrics.
const serverID = "berth-control"

// access holds authentication and authorization.
type access struct {
	audiences     authenticator.Audiences
	keys          *tokens.Keyring
	bootstrap     *tokens.BootstrapAuthenticator
	attempts      *tokens.Attempts
	tokenCache    *tokens.BootstrapCache
	authenticator authn.Authenticator
	sources       authn.Sources
	rbac          *authz.RBAC
	authorizer    authorizer.Authorizer
	aggregation   *authz.ClusterRoleAggregation
	identities    identities
	sessionKey    []byte        // encrypts sessions of the web page
	policyStored  chan struct{} // closed when the default roles exist
	drained       chan struct{} // closed when all requests are done
}

// openAccess creates the authenticators and authorizers. It adds informers, which must not have
// been started.
func (a *Assembly) openAccess() (err error) {
	x := &a.access
	x.drained, x.policyStored = make(chan struct{}), make(chan struct{})
	x.audiences = authenticator.Audiences{a.ServiceAccountIssuer}
	if err := a.openKeys(); err != nil {
		return err
	}
	x.attempts, x.tokenCache = tokens.NewAttempts(nil), tokens.NewBootstrapCache(a.Client)
	x.bootstrap = &tokens.BootstrapAuthenticator{Lookup: x.tokenCache.Get,
		Secrets: a.Client.CoreV1().Secrets(metav1.NamespaceSystem)}
	if err := a.openAuthenticator(); err != nil {
		return err
	}
	if err := a.openAuthorizers(); err != nil {
		return err
	}
	x.aggregation, err = authz.NewClusterRoleAggregation(a.Informers, a.Client.RbacV1().ClusterRoles(), a.Log)
	return err
}

// openKeys opens the keys of service account tokens, and derives that of the sessions of the web page.
func (a *Assembly) openKeys() error {
	key, former, err := a.Authority.ServiceAccountKeys()
	if err != nil {
		return err
	}
	if a.access.keys, err = tokens.NewKeyring(key, former...); err != nil {
		return err
	}
	a.access.sessionKey, err = sessionKey(key)
	return err
}

// openAuthenticator creates the authenticators. Some depend on files, whose errors it returns.
func (a *Assembly) openAuthenticator() (err error) {
	x := &a.access
	if x.sources, err = a.Authentication.Open(authn.IssuersConfig{Audiences: x.audiences,
		ServiceAccountIssuers: []string{a.ServiceAccountIssuer}, ServerID: serverID, Log: a.Log}); err != nil {
		return err
	}
	x.authenticator = authn.New(authn.Config{
		ClientCA: a.clientCA, KubeletClientName: pki.KubeletClientUser, VerifySignature: a.Authority.CheckSignature,
		ReturnPeriod: a.NodeReturnPeriod,
		ServiceAccountTokens: &tokens.Verifier{
			Issuer:    a.ServiceAccountIssuer,
			Audiences: x.audiences,
			Keys:      x.keys,
			Objects:   tokens.NewCachedGetter(a.Informers, a.Client),
			Rejected:  tokens.NewRejectedTokens(),
		},
		BootstrapTokens: x.attempts.Limit(x.bootstrap), LoopbackTokens: &x.identities, Audiences: x.audiences,
		RequestHeader: x.sources.RequestHeader, IssuerTokens: x.sources.Issuers, WebhookTokens: x.sources.Webhook,
		Anonymous: x.sources.Issuers,
	})
	return nil
}

// clientCA is called for each request, because the authority's certificate may have been renewed.
func (a *Assembly) clientCA() (x509.VerifyOptions, bool) {
	o := x509request.DefaultVerifyOptions()
	o.Roots = a.Authority.Pool()
	return o, true
}

// openAuthorizers creates the authorizers. The first one that allows or denies a request decides.
func (a *Assembly) openAuthorizers() error {
	open, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return fmt.Errorf("health check authorizer: %w", err)
	}
	graph, err := authz.NewGraph(a.Informers, a.Client)
	if err != nil {
		return err
	}
	a.access.rbac = authz.NewRBAC(a.Informers)
	a.access.authorizer, err = authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "health", Authorizer: open},
		authorizerunion.NamedAuthorizer{
			AuthorizerName: "masters",
			Authorizer:     authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup),
		},
		authorizerunion.NamedAuthorizer{AuthorizerName: "node", Authorizer: authz.NewNodeAuthorizer(graph)},
		authorizerunion.NamedAuthorizer{AuthorizerName: "rbac",
			Authorizer: newSyncedAuthorizer(a.access.rbac, a.Informers)},
	)
	return err
}

// extraResources returns the resources that are not stored, and subresources from other packages.
func (a *Assembly) extraResources() []Resource {
	authenticationV1, authorizationV1 := authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion
	return []Resource{
		{authenticationV1, "tokenreviews", authn.NewTokenReviews(tokens.Unlimited(a.access.authenticator.Credentials),
			a.access.audiences)},
		{authenticationV1, "selfsubjectreviews", authn.NewSelfSubjectReviews()},
		{authorizationV1, "subjectaccessreviews", authz.NewSubjectAccessReviews(a.access.authorizer)},
		{authorizationV1, "localsubjectaccessreviews", authz.NewLocalSubjectAccessReviews(a.access.authorizer)},
		{authorizationV1, "selfsubjectaccessreviews", authz.NewSelfSubjectAccessReviews(a.access.authorizer)},
		{authorizationV1, "selfsubjectrulesreviews", authz.NewSelfSubjectRulesReviews(a.access.rbac)},
		{corev1.SchemeGroupVersion, "serviceaccounts/token", &tokens.TokenRequestStorage{
			Signer: &tokens.Signer{
				Issuer: a.ServiceAccountIssuer,
				Keys:   a.access.keys,
			}, Objects: a.storeGetter(), Audiences: a.access.audiences, MaxTTL: a.MaxTokenExpiration,
			ExtendInjected: a.ExtendTokenExpiration,
		}},
	}
}

// metricsResources returns the resources of metrics.k8s.io.
func (a *Assembly) metricsResources() []Resource {
	core := a.Informers.Core().V1()
	ofNodes, ofPods := metrics.New(metrics.Options{
		Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(),
		Summary: func(ctx context.Context, node *corev1.Node) (*stats.Summary, error) {
			kubelet, err := pods.KubeletURL(node)
			if err != nil {
				return nil, err
			}
			client := &http.Client{Transport: a.kubeletClient.verified.To(node.Name)}
			return metrics.FetchSummary(ctx, client, kubelet)
		},
	})
	version := metricsv1beta1.SchemeGroupVersion
	return []Resource{{Version: version, Name: "nodes", Storage: ofNodes},
		{Version: version, Name: "pods", Storage: ofPods}}
}
