package control

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/record"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // workqueue_* in /metrics

	"berth/control/controllers"
	"berth/control/scheduler"
	"berth/control/tokens"
)

const (
	// SystemNamespaces is the name of the controller that creates the system namespaces.
	SystemNamespaces = "system-namespaces-controller"
	// schedulerName is the name of the scheduler in Config.Controllers.
	schedulerName = "scheduler"
)

// schedulerAndControllers returns the scheduler and the controllers. Controllers have the names of
// kube-controller-manager.
func (a *Assembly) schedulerAndControllers() []Controller {
	out := []Controller{{Name: schedulerName, LeaderElected: true, Run: a.runScheduler}}
	for _, name := range controllers.Names() {
		out = append(
			out,
			Controller{
				Name:          name,
				LeaderElected: true,
				Run:           func(ctx context.Context) error { return a.runController(ctx, name) },
			},
		)
	}
	return out
}

// runScheduler runs the scheduler.
func (a *Assembly) runScheduler(ctx context.Context) error {
	as, err := a.identityOf(ctx, &user.DefaultInfo{Name: user.KubeScheduler})
	if err != nil {
		return err
	}
	defer as.release()
	events, stop := newEventRecorder(ctx, as.client, scheduler.DefaultName)
	defer stop()
	s, err := scheduler.New(scheduler.Config{
		Client: as.client, Informers: a.Informers, Events: events, Log: a.Log.With("component", schedulerName),
	})
	if err != nil {
		return err
	}
	a.startInformers()
	s.Run(ctx)
	return nil
}

// runController runs one controller.
func (a *Assembly) runController(ctx context.Context, name string) error {
	as, err := a.identityOf(ctx, controllerUser(name))
	if err != nil {
		return err
	}
	defer as.release()
	objects, definitions, err := as.objectClients()
	if err != nil {
		return err
	}
	events, stop := newEventRecorder(ctx, as.client, controllers.EventSource(name))
	defer stop()
	return controllers.Run(ctx, name, controllers.Config{
		Client: as.client, Metadata: objects, Informers: a.Informers, StartInformers: a.startInformers, Events: events,
		Log: a.Log, ClusterCIDRs: a.ClusterCIDRs, ClientCA: a.Authority, ServingCA: a.NodeServingAuthority,
		PodCA: a.PodAuthority, PodCABundle: a.PodAuthority.PEM(), CABundle: a.Authority.PEM(),
		NodeMonitorGracePeriod: a.NodeMonitorGracePeriod,
		SigningDuration:        a.ClusterSigningDuration,
		TokenSigner:            a.secretTokenSigner(),
		LoadBalancerPool:       a.LoadBalancerPool,
		APIServerPort:          a.apiServerPort(), CustomResources: a.customResources, AggregatedKinds: a.aggregation,
		NodeVolumes: controllers.NewNodeVolumes(as.client), Definitions: definitions,
		PolicyTypes: a.policyTypes(), Autoscaling: autoscalingOf(as),
	})
}

// objectClients returns a client of the metadata of objects, and one of CustomResourceDefinitions.
func (as *identity) objectClients() (metadata.Interface, apiextensionsclient.CustomResourceDefinitionInterface, error) {
	objects, err := metadata.NewForConfig(as.config)
	if err != nil {
		return nil, nil, fmt.Errorf("metadata client: %w", err)
	}
	definitions, err := apiextensionsclient.NewForConfig(as.config)
	if err != nil {
		return nil, nil, fmt.Errorf("client of definitions: %w", err)
	}
	return objects, definitions.CustomResourceDefinitions(), nil
}

// autoscalingOf returns what the controller of autoscalers needs. Nothing is requested before it is used.
func autoscalingOf(as *identity) controllers.Autoscaling {
	cached := memory.NewMemCacheClient(as.client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	get := controllers.GetJSON(as.client)
	return controllers.Autoscaling{
		Mapper: mapper, Get: get,
		Scales: scale.New(as.client.Discovery().RESTClient(), mapper, dynamic.LegacyAPIPathResolverFunc,
			scale.NewDiscoveryScaleKindResolver(cached)),
		PodMetrics: controllers.PodMetricsOf(get),
	}
}

func (a *Assembly) secretTokenSigner() *tokens.SecretTokenSigner {
	return &tokens.SecretTokenSigner{
		Signer:    &tokens.Signer{Issuer: a.ServiceAccountIssuer, Keys: a.access.keys},
		Audiences: a.access.audiences, MaxTTL: a.MaxTokenExpiration,
	}
}

// startInformers starts the informers that were added since the last call. They run until the
// server stops.
func (a *Assembly) startInformers() { a.Informers.Start(a.lifetime.Done()) }

// newEventRecorder returns the event recorder of a controller. The returned function stops it.
func newEventRecorder(ctx context.Context, client kubernetes.Interface,
	source string) (record.EventRecorder, func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b.NewRecorder(clientscheme.Scheme, corev1.EventSource{Component: source}), b.Shutdown
}

// controllers returns everything that runs in the background while the server runs.
func (a *Assembly) controllers() []Controller {
	return append([]Controller{
		{Name: SystemNamespaces, Run: a.runSystemNamespaces},
		{Name: "clusterrole-aggregation-controller", Run: a.aggregateRoles},
		{Name: "bootstrap-token-controller", Run: a.runTokenCleaner},
		{Name: "cluster-authentication-trust-controller", Run: a.runAuthenticationPublisher},
		{Name: "kubernetes-service-controller", Run: a.runKubernetesService},
		{Name: policyAddresses, Run: a.runPolicyAddresses},
		{Name: "dns-service-controller", LeaderElected: true, Run: a.runDNSService},
		{Name: "default-servicecidr-controller", LeaderElected: true, Run: a.runServiceCIDR},
		{Name: "service-ip-repair-controller", LeaderElected: true, Run: a.runServiceRepair},
	}, a.schedulerAndControllers()...)
}
