package customresources

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	genericadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapifilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// resyncPeriod is how often the library's controllers check each definition again, as upstream.
const resyncPeriod = 5 * time.Minute

// Config holds what the custom resources share with the other resources of the server.
type Config struct {
	// Generic is the configuration of the API server.
	Generic *genericapiserver.Config
	// Definitions are the storage options of definitions, Objects those of custom resources.
	Definitions, Objects generic.RESTOptionsGetter
	// Metadata opens the metadata of the objects of a resource in the store.
	Metadata MetadataStore
	// Admission is the admission chain of the API server.
	Admission genericadmission.Interface
	// Services resolves the Services of conversion webhooks, to which WebhookAuthentication authenticates the server.
	Services              webhook.ServiceResolver
	WebhookAuthentication webhook.AuthenticationInfoResolverWrapper
	// BuiltIn reports whether the server has resources of an API group without a definition.
	BuiltIn func(group string) bool
	Log     *slog.Logger
}

// Server serves definitions and custom resources as a part of an API server.
type Server struct {
	*Kinds

	definitions *definitions
	discovery   *groupDiscovery
	factory     externalversions.SharedInformerFactory
	// controllers are the library's.
	controllers []func(ctx context.Context)
}

// Install adds definitions and custom resources to an API server that does not run yet.
func Install(server *genericapiserver.GenericAPIServer, c Config) (*Server, error) {
	validation.RegisterMetrics()
	storage, err := customresourcedefinition.NewREST(apiextensionsserver.Scheme, c.Definitions)
	if err != nil {
		return nil, fmt.Errorf("store for definitions: %w", err)
	}
	storage.CreateStrategy = createStrategy{storage.CreateStrategy}
	group := genericapiserver.NewDefaultAPIGroupInfo(apiextensions.GroupName, apiextensionsserver.Scheme,
		metav1.ParameterCodec, apiextensionsserver.Codecs)
	group.PrioritizedVersions = []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	group.VersionedResourcesStorageMap[apiextensionsv1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"customresourcedefinitions": storage,
		"customresourcedefinitions/status": customresourcedefinition.NewStatusREST(apiextensionsserver.Scheme,
			storage),
	}
	if err := server.InstallAPIGroup(&group); err != nil {
		return nil, fmt.Errorf("install API group %s: %w", apiextensions.GroupName, err)
	}
	client, err := clientset.NewForConfig(server.LoopbackClientConfig)
	if err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	s := &Server{factory: externalversions.NewSharedInformerFactory(client, resyncPeriod)}
	s.definitions, err = newDefinitions(s.factory.Apiextensions().V1().CustomResourceDefinitions(), storage)
	if err != nil {
		return nil, err
	}
	s.Kinds = newKinds(s.definitions, c.Metadata, c.Log)
	s.discovery = &groupDiscovery{
		definitions: s.definitions, groups: server.DiscoveryGroupManager,
		aggregated: server.AggregatedDiscoveryGroupManager.WithSource(aggregated.CRDSource), builtIn: c.BuiltIn,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.DefaultTypedControllerRateLimiter[string](),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "DiscoveryController"}),
		published: map[string]map[string]bool{},
	}
	return s, s.install(server, &group, statusClient{client.ApiextensionsV1()}, c)
}

// install mounts the handler and starts everything with the server.
func (s *Server) install(server *genericapiserver.GenericAPIServer, group *genericapiserver.APIGroupInfo,
	client statusClient, c Config) error {
	notFound := notfoundhandler.New(apiextensionsserver.Codecs, genericapifilters.NoMuxAndDiscoveryIncompleteKey)
	h := &handler{definitions: s.definitions, discovery: s.discovery, notFound: notFound,
		uses: uses{now: time.Now, byUID: map[types.UID]*use{}}}
	serving := s.definitions.serving(h.uses.recent)
	establishing := establish.NewEstablishingController(s.definitions, client)
	// The first two arguments serve discovery. That is done by s.discovery, and requests for it do not
	// reach this handler.
	objects, err := apiextensionsserver.NewCustomResourceDefinitionHandler(nil, nil, serving, notFound, c.Objects,
		c.Admission, establishing, c.Services,
		c.WebhookAuthentication,
		1, server.Authorizer, c.Generic.RequestTimeout, time.Duration(c.Generic.MinRequestTimeout)*time.Second,
		group.StaticOpenAPISpec, c.Generic.MaxRequestBodyBytes)
	if err != nil {
		return fmt.Errorf("create handler of custom resources: %w", err)
	}
	h.objects = objects
	server.Handler.NonGoRestfulMux.HandlePrefix("/apis/", h)
	// A definition that is created through v1 has a structural schema, so there is no controller for
	// the condition NonStructuralSchema.
	naming := status.NewNamingConditionController(klog.Background(), s.definitions, client)
	approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(s.definitions, client)
	finalizing := finalizer.NewCRDFinalizer(s.definitions, finalizerClient{client}, objects)
	s.controllers = []func(context.Context){
		naming.RunWithContext, establishing.RunWithContext,
		func(ctx context.Context) { approval.RunWithContext(1, ctx) },
		func(ctx context.Context) { finalizing.RunWithContext(1, ctx) },
		func(ctx context.Context) { h.dropIdle(ctx, serving.dropUnneeded) },
	}
	registration, err := s.discovery.watch()
	if err != nil {
		return err
	}
	return s.addHooks(server, registration)
}

// addHooks starts informers and controllers after the API server. The server is ready when the
// existing definitions are served.
func (s *Server) addHooks(server *genericapiserver.GenericAPIServer,
	discovered cache.ResourceEventHandlerRegistration) error {
	served := make(chan struct{})
	if err := server.RegisterMuxAndDiscoveryCompleteSignal("CustomResourcesServed", served); err != nil {
		return fmt.Errorf("register signal: %w", err)
	}
	return server.AddPostStartHook("start-customresources", //nolint:wrapcheck // names the hook
		func(hook genericapiserver.PostStartHookContext) error {
			s.factory.Start(hook.Done())
			for _, run := range s.controllers {
				go run(hook) // ends with the hook's context
			}
			go s.Kinds.run(hook)
			if !cache.WaitForCacheSync(hook.Done(), discovered.HasSynced) {
				return nil // the server stops
			}
			published := make(chan struct{})
			go s.discovery.run(hook, func() { close(published) })
			<-published
			close(served)
			return nil
		})
}
