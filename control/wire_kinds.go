package control

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/registry"
)

// storeFunc makes the store of a kind for which a row is not enough, and all
// that is served of it, by path: the main resource too.
type storeFunc func(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error)

// specialStores are the kinds that have a package of their own.
func specialStores() map[schema.GroupResource]storeFunc {
	return map[schema.GroupResource]storeFunc{
		{Resource: "namespaces"}: func(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
			return registry.NewNamespaces(kind, a.StoreOptions)
		},
		{Resource: "pods"}:     podStores,
		{Resource: "services"}: serviceStores,
		{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: func(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
			return registry.NewCertificateSigningRequests(kind, a.StoreOptions)
		},
	}
}
