package control

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"berth/control/aggregation"
	"berth/control/customresources"
	"berth/control/pki"
	"berth/control/policyaddresses"
	"berth/control/registry"
	"berth/control/scheme"
)

// Assembly holds what the API server, the scheduler and the controllers share.
type Assembly struct {
	Config
	Scheme    *scheme.Set
	Kinds     []*registry.Kind
	Authority *pki.Authority
	// NodeServingAuthority signs the serving certificates of nodes, see package pki.
	NodeServingAuthority *pki.Authority
	// PodAuthority signs certificates for pods.
	PodAuthority *pki.Authority
	// kubeletClient authenticates this server to kubelets.
	kubeletClient *kubeletClient
	// podTransport reaches pods, also those of webhooks, from any host.
	podTransport *http.Transport
	// frontProxy authenticates this server to extension API servers.
	frontProxy *frontProxy
	// EtcdClient is the etcd client that all stores share.
	EtcdClient *clientv3.Client
	// AdvertisedEndpoint is where pods and other servers reach this server. It is not valid if the
	// server is reachable from its host only.
	AdvertisedEndpoint netip.AddrPort
	StoreOptions       registry.StoreOptions
	// Stores holds the main resources. It is filled when the API groups are installed.
	Stores map[schema.GroupResource]*registry.Store
	// Loopback authenticates to the server itself as system:masters. Client and Informers use it.
	// Objects from Informers have no managed fields.
	Loopback  *restclient.Config
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// lifetime is done when the server stops. Informers started by a restarted controller use it.
	lifetime context.Context //nolint:containedctx // see above

	access          access
	customResources *customresources.Server
	aggregation     *aggregation.Server
	policyAddresses *policyaddresses.Publisher // nil: its controller is disabled
}

// Store returns the store of a resource. It panics if the resource is not in Kinds.
func (a *Assembly) Store(group, resource string) *registry.Store {
	s := a.Stores[schema.GroupResource{Group: group, Resource: resource}]
	if s == nil {
		panic(fmt.Sprintf("no store for %s.%s", resource, group))
	}
	return s
}

// Resource is a resource that is not created from a registry.Kind: a subresource such as pods/log,
// or a resource that is not stored.
type Resource struct {
	Version schema.GroupVersion
	Name    string
	Storage rest.Storage
}

// Controller runs in the background while the server runs: a controller or the scheduler. Run
// returns when ctx is done. It is restarted if it returns earlier.
type Controller struct {
	Name string
	Run  func(ctx context.Context) error
	// LeaderElected controllers run on only one of the servers that share an etcd cluster.
	LeaderElected bool
}
