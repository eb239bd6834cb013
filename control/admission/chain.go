package admission

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"berth/control/authz"
	"berth/control/tokens"
)

// Config holds the dependencies and settings of the plugins.
type Config struct {
	Client     kubernetes.Interface
	Informers  informers.SharedInformerFactory
	Authorizer authorizer.Authorizer // the authorizer of the API server
	RBAC       *authz.RBAC
	Bootstrap  *tokens.BootstrapAuthenticator
	// GetPod reads a pod from the API server. If nil, Client is used.
	GetPod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// CountedResources are the resources that an object count quota can limit.
	CountedResources []schema.GroupResource
	Audience         string // the API server's audience in service account tokens
	// Drained is closed after the last request.
	Drained <-chan struct{}
	// Enabled lists plugins to enable that are disabled by default. Disabled lists plugins to disable.
	Enabled, Disabled []string
	// Configurations of plugins, see ReadConfigurations.
	Configurations Configurations

	// Services resolves the Services of webhooks, and WebhookAuthentication authenticates the server to webhooks.
	Services              webhook.ServiceResolver
	WebhookAuthentication webhook.AuthenticationInfoResolverWrapper
	// Mapper knows all kinds that are served now. Dynamic reads the parameters of policies. PolicyClient is Client
	// with a list of OpenAPI documents that is cheap to get: the plugin of mutating policies polls it.
	Mapper       meta.RESTMapper
	Dynamic      dynamic.Interface
	PolicyClient kubernetes.Interface
	// NotIntercepted are the resources that webhooks and policies do not intercept.
	NotIntercepted []schema.GroupResource
}

// disabledByDefault are plugins that run only if they are enabled, as in kube-apiserver.
var disabledByDefault = []string{"AlwaysPullImages", "EventRateLimit", "DenyServiceExternalIPs"}

// mandatory are plugins that always run. kube-apiserver checks the same in the storage.
var mandatory = []string{"RoleEscalation", "AdmissionPolicyParams"}

// order is the order of all plugins in the chain, which is that of kube-apiserver. Mutating plugins run before
// validating ones. Plugins that write to the storage are last.
var order = []string{
	"NamespaceLifecycle", "LimitRanger", "ServiceAccount", "NodeRestriction", "NodeCertificates",
	"TaintNodesByCondition", "AlwaysPullImages", "PodTopologyLabels", "PodSecurity", "Priority",
	"DefaultTolerationSeconds", "EventRateLimit", "DefaultStorageClass", "StorageObjectInUseProtection",
	"PersistentVolumeClaimResize", "RuntimeClass",
	"CertificateApproval", "CertificateSigning", "ClusterTrustBundleAttest", "CertificateSubjectRestriction",
	"RoleEscalation",
	"AdmissionPolicyParams", "BootstrapTokenUse", "DefaultIngressClass", "DenyServiceExternalIPs", "DeviceClaims",
	"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy",
	"ValidatingAdmissionWebhook", "ResourceQuota",
}

// Names returns the plugins that can be enabled or disabled, in their order in the chain.
func Names() []string {
	return slices.DeleteFunc(slices.Clone(order), func(name string) bool { return slices.Contains(mandatory, name) })
}

// NamesDisabledByDefault returns the plugins that run only if they are enabled.
func NamesDisabledByDefault() []string { return slices.Clone(disabledByDefault) }

// New creates the admission chain.
func New(c Config) (admission.Interface, error) {
	constructors := map[string]func(Config) (admission.Interface, error){
		"NamespaceLifecycle":            newLifecycle,
		"LimitRanger":                   newLimitRanger,
		"ServiceAccount":                newServiceAccounts,
		"TaintNodesByCondition":         newTaintNodesByCondition,
		"PodTopologyLabels":             newTopologyLabels,
		"NodeRestriction":               newNodeRestriction,
		"NodeCertificates":              newNodeCertificates,
		"PodSecurity":                   newPodSecurity,
		"Priority":                      newPriority,
		"DefaultTolerationSeconds":      newTolerations,
		"RuntimeClass":                  newRuntimeClasses,
		"CertificateApproval":           newApproval,
		"CertificateSigning":            newSigning,
		"ClusterTrustBundleAttest":      newTrustBundleAttest,
		"CertificateSubjectRestriction": newSubjectRestriction,
		"RoleEscalation":                newEscalation,
		"AdmissionPolicyParams":         newPolicyParams,
		"BootstrapTokenUse":             newBootstrapTokenUse,
		"DefaultIngressClass":           newDefaultIngressClass,
		"DefaultStorageClass":           newDefaultStorageClass,
		"StorageObjectInUseProtection":  newStorageProtection,
		"PersistentVolumeClaimResize":   newClaimResize,
		"DeviceClaims":                  newDeviceClaims,
		"MutatingAdmissionPolicy":       newMutatingPolicies,
		"MutatingAdmissionWebhook":      newMutatingWebhooks,
		"ValidatingAdmissionPolicy":     newValidatingPolicies,
		"ValidatingAdmissionWebhook":    newValidatingWebhooks,
		"ResourceQuota":                 newQuota,
		"AlwaysPullImages":              newAlwaysPullImages,
		"EventRateLimit":                newEventRateLimit,
		"DenyServiceExternalIPs":        newDenyServiceExternalIPs,
	}
	if c.GetPod == nil {
		c.GetPod = tokens.LiveGetter{Client: c.Client}.Pod
	}
	if err := ValidateNames(c.Enabled, c.Disabled); err != nil {
		return nil, err
	}
	var plugins []admission.Interface
	for _, name := range order {
		switch {
		case slices.Contains(mandatory, name), slices.Contains(c.Enabled, name):
		case slices.Contains(c.Disabled, name), slices.Contains(disabledByDefault, name):
			continue
		}
		plugin, err := constructors[name](c)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", name, err)
		}
		plugins = append(plugins, plugin)
	}
	all := admission.NewChainHandler(plugins...)
	return chain{all, all}, nil
}

// chain runs all plugins.
type chain struct {
	mutating   admission.MutationInterface
	validating admission.ValidationInterface
}

// Handles reports whether a plugin handles the operation.
func (c chain) Handles(operation admission.Operation) bool { return c.mutating.Handles(operation) }

// Admit runs the mutating plugins. It runs them a second time if a webhook or a policy has changed the object: the
// plugins of the server see its changes then, and webhooks and policies with the reinvocation policy IfNeeded see
// those that were made after them.
func (c chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := c.mutating.Admit(ctx, a, o); err != nil {
		return err
	}
	reinvocation := a.GetReinvocationContext()
	if !reinvocation.ShouldReinvoke() {
		return nil
	}
	reinvocation.SetIsReinvoke()
	return c.mutating.Admit(ctx, a, o)
}

// Validate runs the validating plugins.
func (c chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return c.validating.Validate(ctx, a, o)
}

// newLifecycle returns the NamespaceLifecycle plugin of k8s.io/apiserver, which rejects objects in
// missing and terminating namespaces.
func newLifecycle(c Config) (admission.Interface, error) {
	p, err := lifecycle.NewLifecycle(sets.New(corev1.NamespaceDefault, "kube-system", "kube-public"))
	if err != nil {
		return nil, err
	}
	return p, initialize(c, p)
}

func initialize(c Config, p admission.Interface) error {
	if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		w.SetExternalKubeInformerFactory(c.Informers)
	}
	if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
		w.SetExternalKubeClientSet(c.Client)
	}
	if w, ok := p.(admission.InitializationValidator); ok {
		return w.ValidateInitialization()
	}
	return nil
}

// isResource reports whether the request is for the resource or one of its subresources.
func isResource(a admission.Attributes, group, resource string) bool {
	return a.GetResource().GroupResource() == schema.GroupResource{Group: group, Resource: resource}
}

// podOf returns the pod of a request for pods, but not for a subresource.
func podOf(a admission.Attributes) (*corev1.Pod, bool) {
	if !isResource(a, "", "pods") || a.GetSubresource() != "" {
		return nil, false
	}
	pod, ok := a.GetObject().(*corev1.Pod)
	return pod, ok
}
