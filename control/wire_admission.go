package control

import (
	"fmt"

	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/tracing"

	"berth/control/admission"
	"berth/control/controllers"
	"berth/control/registry"
)

// admission returns the chain of admission plugins.
func (a *Assembly) admission() (genericadmission.Interface, error) {
	objects, err := dynamic.NewForConfig(a.Loopback)
	if err != nil {
		return nil, fmt.Errorf("dynamic client: %w", err)
	}
	configurations, err := admission.ReadConfigurations(a.AdmissionConfigFile)
	if err != nil {
		return nil, err
	}
	return admission.New(admission.Config{
		Client: a.Client, Informers: a.Informers, Authorizer: a.access.authorizer, RBAC: a.access.rbac,
		Bootstrap: a.access.bootstrap, GetPod: a.storeGetter().Pod,
		CountedResources: registry.Namespaced(a.Kinds), Audience: a.ServiceAccountIssuer,
		Drained:  a.access.drained,
		Enabled:  a.EnabledAdmissionPlugins,
		Disabled: a.DisabledAdmissionPlugins, Configurations: configurations,
		Services: a.serviceResolver(), WebhookAuthentication: a.webhookAuthentication(),
		Mapper: a.restMapper(), Dynamic: objects, PolicyClient: a.policyClient(),
		NotIntercepted: registry.NotIntercepted(),
	})
}

// webhookAuthentication authenticates the server to itself. To other webhooks, it presents no credentials. It
// connects to the endpoints of Services as to all pods.
func (a *Assembly) webhookAuthentication() webhook.AuthenticationInfoResolverWrapper {
	return webhook.NewDefaultAuthenticationInfoResolverWrapper(a.podTransport, nil, a.Loopback,
		tracing.NewNoopTracerProvider())
}

// policyClient is the client of the server itself with an openAPIClient.
func (a *Assembly) policyClient() kubernetes.Interface {
	return clientWithOpenAPI{a.Client, openAPIClient{a}}
}

// policyTypes returns the type checker of policies. It reads the OpenAPI documents of the types when it is used.
func (a *Assembly) policyTypes() controllers.PolicyTypeChecker {
	return &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: a.policyClient().Discovery()},
		RestMapper:     a.restMapper(),
	}
}
