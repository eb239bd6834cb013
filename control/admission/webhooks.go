package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
)

// allOperations are intercepted by webhooks and validating policies. Mutating policies do not intercept deletions.
var allOperations = []admission.Operation{admission.Connect, admission.Create, admission.Delete, admission.Update}

// newMutatingWebhooks returns the MutatingAdmissionWebhook plugin of k8s.io/apiserver.
func newMutatingWebhooks(c Config) (admission.Interface, error) {
	if err := c.Configurations.checkWebhooks("MutatingAdmissionWebhook"); err != nil {
		return nil, err
	}
	create := func() (admission.MutationInterface, error) {
		p, err := mutatingwebhook.NewMutatingWebhook(c.Configurations.reader("MutatingAdmissionWebhook"))
		if err != nil {
			return nil, err
		}
		return p, initializeLibrary(c, p)
	}
	return mutatingOnDemand{newOnDemand(c, create, allOperations,
		c.Informers.Admissionregistration().V1().MutatingWebhookConfigurations().Informer())}, nil
}

// newValidatingWebhooks returns the ValidatingAdmissionWebhook plugin of k8s.io/apiserver.
func newValidatingWebhooks(c Config) (admission.Interface, error) {
	if err := c.Configurations.checkWebhooks("ValidatingAdmissionWebhook"); err != nil {
		return nil, err
	}
	create := func() (admission.ValidationInterface, error) {
		p, err := validatingwebhook.NewValidatingAdmissionWebhook(c.Configurations.reader("ValidatingAdmissionWebhook"))
		if err != nil {
			return nil, err
		}
		return p, initializeLibrary(c, p)
	}
	return validatingOnDemand{newOnDemand(c, create, allOperations,
		c.Informers.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer())}, nil
}

// newMutatingPolicies returns the MutatingAdmissionPolicy plugin of k8s.io/apiserver. A policy has no effect without
// a binding.
func newMutatingPolicies(c Config) (admission.Interface, error) {
	create := func() (admission.MutationInterface, error) {
		p, err := mutatingpolicy.NewPlugin(nil)
		if err != nil {
			return nil, err
		}
		return p, initializeLibrary(forPolicies(c), p)
	}
	v1 := c.Informers.Admissionregistration().V1()
	return mutatingOnDemand{newOnDemand(c, create,
		[]admission.Operation{admission.Connect, admission.Create, admission.Update},
		v1.MutatingAdmissionPolicyBindings().Informer(), v1.MutatingAdmissionPolicies().Informer())}, nil
}

// newValidatingPolicies returns the ValidatingAdmissionPolicy plugin of k8s.io/apiserver. A policy has no effect
// without a binding.
func newValidatingPolicies(c Config) (admission.Interface, error) {
	create := func() (admission.ValidationInterface, error) {
		p, err := validatingpolicy.NewPlugin(nil)
		if err != nil {
			return nil, err
		}
		return p, initializeLibrary(forPolicies(c), p)
	}
	v1 := c.Informers.Admissionregistration().V1()
	return validatingOnDemand{newOnDemand(c, create, allOperations,
		v1.ValidatingAdmissionPolicyBindings().Informer(), v1.ValidatingAdmissionPolicies().Informer())}, nil
}

// forPolicies returns the configuration of the plugins of policies.
func forPolicies(c Config) Config {
	c.Client, c.Informers = c.PolicyClient, withoutParams{c.Informers}
	return c
}

// withoutParams is a factory that has no informers for the parameters of policies. The plugins then create informers
// that stop when no policy needs them. They would stop an informer of the shared factory too, which other components
// may use and which would not start again.
type withoutParams struct {
	informers.SharedInformerFactory
}

// ForResource returns an error.
func (withoutParams) ForResource(of schema.GroupVersionResource) (informers.GenericInformer, error) {
	return nil, fmt.Errorf("no shared informer for %s as parameter of policies", of)
}

// initializeLibrary gives a plugin what kube-apiserver gives it.
func initializeLibrary(c Config, p admission.Interface) error {
	initializer.New(c.Client, c.Dynamic, c.Informers, c.Authorizer, utilfeature.DefaultFeatureGate, nil, c.Drained,
		c.Mapper).Initialize(p)
	webhookinitializer.NewPluginInitializer(c.WebhookAuthentication, c.Services).Initialize(p)
	if w, ok := p.(initializer.WantsExcludedAdmissionResources); ok {
		w.SetExcludedAdmissionResources(c.NotIntercepted)
	}
	return admission.ValidateInitialization(p)
}
