package admission

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/predicates/rules"
	"k8s.io/client-go/tools/cache"
)

// onDemand creates a plugin of k8s.io/apiserver when there is a configuration for it. Without one, such a plugin
// would hold CEL environments and run goroutines for nothing.
type onDemand[P admission.Interface] struct {
	*admission.Handler

	configurations cache.Store
	notIntercepted []schema.GroupResource
	create         func() (P, error)

	mu      sync.Mutex
	created bool
	plugin  P
}

// newOnDemand returns a plugin for operations. No plugin is created until the first informer has an object. The
// plugin reads the others too.
func newOnDemand[P admission.Interface](c Config, create func() (P, error), operations []admission.Operation,
	informers ...cache.SharedIndexInformer) *onDemand[P] {
	o := &onDemand[P]{Handler: admission.NewHandler(operations...), configurations: informers[0].GetStore(),
		notIntercepted: c.NotIntercepted, create: create}
	o.SetReadyFunc(func() bool {
		return !slices.ContainsFunc(informers, func(i cache.SharedIndexInformer) bool { return !i.HasSynced() })
	})
	return o
}

// get returns the plugin. It reports false if nothing is configured, or if nothing can intercept the request.
func (o *onDemand[P]) get(a admission.Attributes) (plugin P, found bool, err error) {
	if rules.IsExemptAdmissionConfigurationResource(a) ||
		slices.Contains(o.notIntercepted, a.GetResource().GroupResource()) {
		return plugin, false, nil
	}
	if !o.WaitForReady() {
		return plugin, false, admission.NewForbidden(a, errors.New("not yet ready to handle request"))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.created {
		if len(o.configurations.ListKeys()) == 0 {
			return plugin, false, nil
		}
		if o.plugin, err = o.create(); err != nil {
			return plugin, false, err
		}
		o.created = true
	}
	return o.plugin, true, nil
}

// mutatingOnDemand runs a plugin that changes objects.
type mutatingOnDemand struct {
	*onDemand[admission.MutationInterface]
}

// Admit runs the plugin if there is one.
func (m mutatingOnDemand) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, found, err := m.get(a)
	if !found || err != nil {
		return err
	}
	return plugin.Admit(ctx, a, o)
}

// validatingOnDemand runs a plugin that validates objects.
type validatingOnDemand struct {
	*onDemand[admission.ValidationInterface]
}

// Validate runs the plugin if there is one.
func (v validatingOnDemand) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	plugin, found, err := v.get(a)
	if !found || err != nil {
		return err
	}
	return plugin.Validate(ctx, a, o)
}
