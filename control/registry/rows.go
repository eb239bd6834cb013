package registry

import (
	"context"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/control/printers"
	"berth/control/validation"
)

// All returns the table: a fresh copy of every row, in the order of the groups.
// The caller may fill in or change rows before stores are made from them.
func All() []*Kind {
	all := slices.Concat(coreKinds(), workloadKinds(), accessKinds(), schedulingKinds(), policyKinds(), networkKinds(), storageKinds(), deviceKinds(), eventKinds())
	for _, k := range all {
		k.complete()
	}
	return all
}

// complete takes the columns and the rules of the row's kind, where the row does
// not say otherwise.
func (k *Kind) complete() {
	kind := schema.GroupKind{Group: k.GroupVersion.Group, Kind: k.Name()}
	k.Columns = printers.ColumnsFor(kind)
	r, ok := validation.RulesFor(kind)
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

// Find returns the row of a resource, or nil.
func Find(table []*Kind, group, resource string) *Kind {
	for _, k := range table {
		if k.GroupVersion.Group == group && k.Resource == resource {
			return k
		}
	}
	return nil
}

// serviceWarnings says of a service with an address that nothing takes it there yet.
func serviceWarnings(obj runtime.Object) []string {
	svc, ok := obj.(*corev1.Service)
	if !ok || svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	what := "its cluster IP"
	if svc.Spec.Type != corev1.ServiceTypeClusterIP {
		what += " and node ports"
	}
	return []string{"the service's endpoints are kept, but nothing on the nodes routes " + what + " yet"}
}

// storedOnlyWarning is the warning of a kind that no part of the server acts on; something else may.
func storedOnlyWarning(what string) string {
	return what + " are stored by this server, which does not act on them"
}
