package control

import (
	"context"
	"fmt"
	"net/netip"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control/pki"
	"berth/control/registry"
	"berth/control/scheme"
)

// Assembly is what the parts of a server are made from.
type Assembly struct {
	Config
	Scheme    *scheme.Set
	Kinds     []*registry.Kind
	Authority *pki.Authority
	// NodeServingAuthority signs what nodes show of themselves; see pki.
	NodeServingAuthority *pki.Authority
	// kubeletClient is how this server shows itself to nodes.
	kubeletClient *kubeletClient
	// EtcdClient is the client of the store that all share.
	EtcdClient *clientv3.Client
	// AdvertisedEndpoint is where others reach this server; not valid: nowhere.
	AdvertisedEndpoint netip.AddrPort
	StoreOptions       registry.StoreOptions
	// Stores are the main resources, there once the kinds are installed.
	Stores map[schema.GroupResource]*registry.Store
	// Loopback reaches the server itself as system:masters; Client and Informers
	// work through it. Informers hand out objects without managed fields.
	Loopback  *restclient.Config
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// lifetime ends with the server; parts that come and go start watches for it.
	lifetime context.Context //nolint:containedctx // see above

	access access
}

// Store returns the store of a resource that is in the table.
func (a *Assembly) Store(group, resource string) *registry.Store {
	s := a.Stores[schema.GroupResource{Group: group, Resource: resource}]
	if s == nil {
		panic(fmt.Sprintf("no store of %s.%s", resource, group))
	}
	return s
}

// Resource is something served that no row of the table makes: a subresource
// ("pods/log"), or a resource that is not stored.
type Resource struct {
	Version schema.GroupVersion
	Name    string
	Storage rest.Storage
}

// Controller is a piece of the server that works by itself while the server runs: a
// controller, the scheduler. It ends when ctx is done; when it ends before, it
// is started again.
type Controller struct {
	Name string
	Run  func(ctx context.Context) error
	// LeaderElected: of several servers on one store, only one runs it.
	LeaderElected bool
}
