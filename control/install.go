package control

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"berth/control/registry"
	"berth/control/scheme"
)

// served maps group versions and paths to storages.
type served map[schema.GroupVersion]map[string]rest.Storage

func (s served) add(version schema.GroupVersion, name string, storage rest.Storage) {
	if s[version] == nil {
		s[version] = map[string]rest.Storage{}
	}
	s[version][name] = storage
}

// makeStores creates the store of every kind with its subresources.
func (a *Assembly) makeStores() (served, error) {
	all := served{}
	a.Stores = map[schema.GroupResource]*registry.Store{}
	special := specialStores()
	for _, kind := range a.Kinds {
		if stores, ok := special[kind.GroupResource()]; ok {
			main, more, err := stores(a, kind)
			if err != nil {
				return nil, err
			}
			a.Stores[kind.GroupResource()] = main
			for name, storage := range more {
				all.add(kind.GroupVersion, name, storage)
			}
			continue
		}
		main, err := registry.NewStore(kind, a.StoreOptions)
		if err != nil {
			return nil, err
		}
		a.Stores[kind.GroupResource()] = main
		for _, version := range append([]schema.GroupVersion{kind.GroupVersion}, kind.OtherVersions...) {
			all.add(version, kind.Resource, main)
			if kind.Status {
				all.add(version, kind.Resource+"/status", registry.NewStatus(main, a.StoreOptions))
			}
		}
		if kind.Scale != nil {
			all.add(kind.GroupVersion, kind.Resource+"/scale", registry.NewScale(main))
		}
	}
	for _, r := range slices.Concat(a.extraResources(), a.metricsResources(), a.policyResources()) {
		all.add(r.Version, r.Name, r.Storage)
	}
	return all, nil
}

// install installs the storages as API groups.
func (a *Assembly) install(server *genericapiserver.GenericAPIServer, all served) error {
	var groups []*genericapiserver.APIGroupInfo
	byName := map[string]*genericapiserver.APIGroupInfo{}
	for _, version := range scheme.GroupVersions() {
		storages := all[version]
		if len(storages) == 0 {
			continue
		}
		if group, installed := byName[version.Group]; installed {
			group.VersionedResourcesStorageMap[version.Version] = storages
			continue
		}
		info := genericapiserver.NewDefaultAPIGroupInfo(
			version.Group,
			a.Scheme.Scheme,
			a.Scheme.ParameterCodec,
			a.Scheme.Codecs,
		)
		info.VersionedResourcesStorageMap[version.Version] = storages
		if version.Group == "" {
			if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
				return fmt.Errorf("install API group %s: %w", version, err)
			}
			continue
		}
		groups, byName[version.Group] = append(groups, &info), &info
	}
	if err := server.InstallAPIGroups(groups...); err != nil {
		return fmt.Errorf("install API groups: %w", err)
	}
	return nil
}

// storeFunc creates the store of a kind that needs more than registry.NewStore, and all storages of
// that kind by path, including the main resource.
type storeFunc func(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error)

// specialStores returns the kinds that need a storeFunc.
func specialStores() map[schema.GroupResource]storeFunc {
	return map[schema.GroupResource]storeFunc{
		{Resource: "namespaces"}: func(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage,
			error) {
			return registry.NewNamespaces(kind, a.StoreOptions)
		},
		{Resource: "pods"}:     podStores,
		{Resource: "services"}: serviceStores,
		{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: func(a *Assembly,
			kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
			return registry.NewCertificateSigningRequests(kind, a.StoreOptions)
		},
	}
}
