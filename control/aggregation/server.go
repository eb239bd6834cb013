package aggregation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/util/webhook"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/metrics/legacyregistry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/kube-aggregator/pkg/client/informers/externalversions"
	informers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/controllers/autoregister"
	local "k8s.io/kube-aggregator/pkg/controllers/status/local"
	"k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"
	apiservicerest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"

	"berth/control/dynamickinds"
)

const (
	resyncPeriod = 5 * time.Minute // as upstream
	// availabilityWorkers is the number of APIServices that are checked at once, as upstream.
	availabilityWorkers = 5
)

// Certificate is the client certificate of the front proxy. Its listeners are called after a renewal.
type Certificate interface {
	CurrentCertKeyContent() (cert, key []byte)
	AddListener(listener dynamiccertificates.Listener)
}

// Config is the configuration of Install.
type Config struct {
	// Storage has the storage options of APIServices.
	Storage generic.RESTOptionsGetter
	// Services resolves the Services of APIServices.
	Services webhook.ServiceResolver
	// Dial connects to an endpoint of a Service.
	Dial *transport.DialHolder
	// ProxyCertificate authenticates the server to extension API servers.
	ProxyCertificate Certificate
	// Informers has the informers of Services and EndpointSlices. They are added when they are needed, and
	// started by StartInformers.
	Informers      clientinformers.SharedInformerFactory
	StartInformers func()
	// BuiltIn are the group versions of the server itself that have a Local APIService, in the order of
	// discovery.
	BuiltIn []schema.GroupVersion
	// Definitions is the informer of CustomResourceDefinitions. Their group versions have Local APIServices.
	Definitions cache.SharedIndexInformer
	// Reserved reports whether the kinds of a group are the server's own, also in other versions.
	Reserved func(group string) bool
	Log      *slog.Logger
}

// Server serves APIServices.
type Server struct {
	Config

	kinds      *dynamickinds.Set[schema.GroupResource]
	groups     discovery.GroupManager
	lists      http.Handler // the list of API groups, in both forms
	client     clientset.Interface
	factory    externalversions.SharedInformerFactory
	discovery  apiserver.DiscoveryAggregationController
	discovered *discovered
	metrics    *metrics.Metrics

	// backends has the extension API servers. A map is never changed.
	backends atomic.Pointer[map[schema.GroupVersion]*backend]

	updating sync.Mutex // serializes updateKinds

	// remote reports whether the availability of extension API servers is checked. Only AddAPIService uses it.
	remote   bool
	lifetime context.Context //nolint:containedctx // of the goroutines that start later

	mu      sync.Mutex
	stopped bool // nothing starts any more
	running sync.WaitGroup
}

// start runs a controller until it returns, unless the server has stopped.
func (s *Server) start(run func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.running.Go(run)
	}
}

// availabilityMetrics are registered once per process.
var availabilityMetrics = sync.OnceValues(func() (*metrics.Metrics, error) {
	m := metrics.New()
	return m, m.Register(legacyregistry.Register, legacyregistry.CustomRegister)
})

// Install serves the API group of APIServices. The caller passes requests through Serve, and calls Wait
// after the server has stopped.
func Install(server *genericapiserver.GenericAPIServer, c Config) (*Server, error) {
	group := apiservicerest.NewRESTStorage(apiserver.DefaultAPIResourceConfigSource(), c.Storage, false)
	if err := server.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("install API group %s: %w", apiregistrationv1.GroupName, err)
	}
	client, err := clientset.NewForConfig(server.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	objects, err := metadata.NewForConfig(server.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	s := &Server{Config: c, kinds: newKinds(objects), groups: server.DiscoveryGroupManager, client: client,
		factory: externalversions.NewSharedInformerFactory(client, resyncPeriod)}
	s.backends.Store(&map[schema.GroupVersion]*backend{})
	if s.metrics, err = availabilityMetrics(); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	s.lists = aggregated.WrapAggregatedDiscoveryToHandler(http.HandlerFunc(s.serveGroups),
		server.AggregatedDiscoveryGroupManager, nil)
	s.discovered = newDiscovered(server.AggregatedDiscoveryGroupManager.WithSource(aggregated.AggregatorSource),
		s.documentHash, s.updateKinds)
	s.discovery = apiserver.NewDiscoveryManager(s.discovered)
	return s, s.addHooks(server)
}

// apiServices returns the informer of APIServices.
func (s *Server) apiServices() informers.APIServiceInformer {
	return s.factory.Apiregistration().V1().APIServices()
}

// APIServices returns the shared informer of APIServices.
func (s *Server) APIServices() cache.SharedIndexInformer { return s.apiServices().Informer() }

func (s *Server) addHooks(server *genericapiserver.GenericAPIServer) error {
	registration := apiserver.NewAPIServiceRegistrationController(s.apiServices(), s)
	s.ProxyCertificate.AddListener(registration)
	localAvailability, err := local.New(s.apiServices(), s.client.ApiregistrationV1(), s.metrics)
	if err != nil {
		return fmt.Errorf("availability of local APIServices: %w", err)
	}
	autoRegistration := autoregister.NewAutoRegisterController(s.apiServices(), s.client.ApiregistrationV1())
	definitions, err := s.registerLocal(autoRegistration)
	if err != nil {
		return err
	}
	served := make(chan struct{})
	if err := server.RegisterMuxAndDiscoveryCompleteSignal("APIServicesServed", served); err != nil {
		return fmt.Errorf("register signal: %w", err)
	}
	return server.AddPostStartHook("start-aggregation", //nolint:wrapcheck // names the hook
		func(hook genericapiserver.PostStartHookContext) error {
			s.lifetime = hook
			s.factory.Start(hook.Done())
			registered, discovered := make(chan struct{}), make(chan struct{})
			s.start(func() { registration.Run(hook.Done(), registered) })
			s.start(func() { localAvailability.Run(1, hook.Done()) })
			s.start(func() {
				// Otherwise the APIServices of existing definitions would be deleted and created again.
				if cache.WaitForCacheSync(hook.Done(), definitions.HasSynced) {
					autoRegistration.Run(1, hook.Done())
				}
			})
			if !waitFor(hook, registered) {
				return nil // the server stops
			}
			s.start(func() { s.discovery.Run(hook.Done(), discovered) })
			if waitFor(hook, discovered) {
				close(served)
			}
			return nil
		})
}

// waitFor waits until done is closed. It reports false if ctx is done first.
func waitFor(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-done:
		return true
	}
}

// Wait waits until the controllers have returned, which they do when the server stops, and closes the
// connections to extension API servers.
func (s *Server) Wait() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.running.Wait()
	s.kinds.Close()
	s.factory.Shutdown()
	for _, b := range *s.backends.Load() {
		b.close()
	}
}

var _ apiserver.APIHandlerManager = (*Server)(nil)

// AddAPIService forwards the requests of an APIService, or updates where they go. One goroutine calls it and
// RemoveAPIService.
func (s *Server) AddAPIService(in *apiregistrationv1.APIService) error {
	gv := schema.GroupVersion{Group: in.Spec.Group, Version: in.Spec.Version}
	if in.Spec.Service == nil {
		s.RemoveAPIService(in.Name)
		return nil
	}
	if err := s.startRemoteAvailability(); err != nil {
		return err
	}
	known := (*s.backends.Load())[gv] != nil
	b := s.newBackend(in)
	s.setBackend(gv, b)
	// As upstream, discovery ignores the condition after a change, which may be about to repair the server.
	s.discovery.AddAPIService(in, b.withAvailability(known || b.available))
	return nil
}

// RemoveAPIService ends forwarding for an APIService.
func (s *Server) RemoveAPIService(name string) {
	gv := helper.APIServiceNameToGroupVersion(name)
	if (*s.backends.Load())[gv] == nil {
		return
	}
	s.setBackend(gv, nil)
	s.discovery.RemoveAPIService(name)
}

func (s *Server) setBackend(gv schema.GroupVersion, b *backend) {
	all := maps.Clone(*s.backends.Load())
	old := all[gv]
	if all[gv] = b; b == nil {
		delete(all, gv)
	}
	s.backends.Store(&all)
	if old != nil {
		old.close()
	}
}

// startRemoteAvailability starts the controller of the availability of extension API servers, once.
func (s *Server) startRemoteAvailability() error {
	if s.remote {
		return nil
	}
	controller, err := remote.New(s.apiServices(), s.Informers.Core().V1().Services(),
		s.Informers.Discovery().V1().EndpointSlices(), s.client.ApiregistrationV1(), s.Dial,
		s.ProxyCertificate.CurrentCertKeyContent, s.Services, s.metrics)
	if err != nil {
		return fmt.Errorf("availability of APIServices: %w", err)
	}
	s.remote = true
	s.StartInformers()
	s.start(func() { controller.Run(availabilityWorkers, s.lifetime.Done()) })
	return nil
}
