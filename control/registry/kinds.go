package registry

import (
	"context"
	"reflect"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/control/printers"
	"berth/control/validation"
	"berth/control/validation/deviceselector"
	"berth/control/validation/policyexpressions"
)

// All returns a new copy of all kinds, ordered by group. The caller may change them before it
// creates stores.
func All() []*Kind {
	all := slices.Concat(
		coreKinds(),
		workloadKinds(),
		accessKinds(),
		fairnessKinds(),
		admissionKinds(),
		schedulingKinds(),
		policyKinds(),
		networkKinds(),
		storageKinds(),
		migrationKinds(),
		deviceKinds(),
		eventKinds(),
	)
	for _, k := range all {
		k.complete()
	}
	return all
}

// complete sets the columns, and the validation functions that are not set.
func (k *Kind) complete() {
	kind := schema.GroupKind{Group: k.GroupVersion.Group, Kind: k.Name()}
	k.Columns = printers.ColumnsFor(kind)
	r, ok := validation.RulesFor(kind,
		validation.Compilers{Devices: deviceselector.Compile, Policies: policyexpressions.NewCompiler})
	if !ok {
		return
	}
	setIfNil(&k.Default, r.Default)
	setIfNil(&k.Validate, r.Validate)
	setIfNil(&k.ValidateUpdate, r.ValidateUpdate)
	setIfNil(&k.ValidateStatus, r.ValidateStatus)
	if k.Prepare == nil {
		k.Prepare = func(_ context.Context, obj runtime.Object) { r.Prepare(obj) }
	}
	if k.PrepareUpdate == nil {
		k.PrepareUpdate = func(_ context.Context, obj, old runtime.Object) { r.PrepareUpdate(obj, old) }
	}
}

func setIfNil[F any](to *F, rule F) {
	if reflect.ValueOf(*to).IsNil() {
		*to = rule
	}
}

// Find returns the kind of a resource, or nil.
func Find(table []*Kind, group, resource string) *Kind {
	for _, k := range table {
		if k.GroupVersion.Group == group && k.Resource == resource {
			return k
		}
	}
	return nil
}

// keepLabels is a PrepareStatus that keeps labels and annotations.
func keepLabels(_ context.Context, obj, old runtime.Object) {
	now, err := meta.Accessor(obj)
	before, oldErr := meta.Accessor(old)
	if err == nil && oldErr == nil { // always, for objects of the table
		now.SetLabels(before.GetLabels())
		now.SetAnnotations(before.GetAnnotations())
	}
}

// serviceCIDRWarnings warns that only the range of the server's flags is used.
func serviceCIDRWarnings(obj runtime.Object) []string {
	if c, ok := obj.(*networkingv1.ServiceCIDR); !ok || c.Name == defaultServiceCIDR {
		return nil
	}
	return []string{"this server allocates the addresses of Services from --service-cluster-ip-range only"}
}

// defaultServiceCIDR is the ServiceCIDR of the server's flags.
const defaultServiceCIDR = "kubernetes"

// storedOnlyWarning returns the warning for kinds on which no controller of this server acts.
func storedOnlyWarning(what string) string {
	return what + " are stored by this server, which does not act on them"
}
