package control

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/pods"
	"berth/control/policyaddresses"
	"berth/control/registry"
	"berth/control/serviceips"
	addressesv1 "berth/services/policy/addresses/v1"
)

// services returns the ranges for the addresses and ports of Services.
func (c *Config) services() serviceips.Ranges {
	return serviceips.Ranges{Addresses: c.ServiceCIDRs, Ports: c.ServiceNodePorts}
}

// apiServerPort returns the port of this server at the addresses of its node; 0: not known.
func (a *Assembly) apiServerPort() uint16 { return a.AdvertisedEndpoint.Port() }

// serviceStores creates Services with their subresources.
func serviceStores(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
	main, all, err := serviceips.New(
		kind,
		serviceips.Options{Place: a.StoreOptions, Etcd: a.EtcdClient, Ranges: a.Config.services(), Log: a.Log},
	)
	if err != nil {
		return nil, nil, err
	}
	all["services/proxy"] = &pods.ServiceProxy{
		GetService:   a.service,
		GetEndpoints: a.endpoints,
		PodTransport: a.podTransport,
	}
	return main, all, nil
}

func (a *Assembly) service(ctx context.Context, name string) (*corev1.Service, error) {
	obj, err := a.Store("", "services").Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("service %s: unexpected type %T", name, obj)
	}
	return svc, nil
}

func (a *Assembly) endpoints(
	ctx context.Context,
	name string,
) (*corev1.Endpoints, error) { //nolint:staticcheck // served as long as upstream serves it
	obj, err := a.Store("", "endpoints").Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	endpoints, ok := obj.(*corev1.Endpoints) //nolint:staticcheck // as above
	if !ok {
		return nil, fmt.Errorf("endpoints %s: unexpected type %T", name, obj)
	}
	return endpoints, nil
}

// policyAddresses is the name of the controller that computes the addresses of network policies.
const policyAddresses = "network-policy-addresses-controller"

// policyResources returns the resource that nodes read instead of all pods. It is served only if its
// controller runs.
func (a *Assembly) policyResources() []Resource {
	if !controllerEnabled(a.Controllers, policyAddresses) {
		return nil
	}
	a.policyAddresses = policyaddresses.New(a.Informers, func() { a.startInformers() }, time.Now())
	return []Resource{{
		Version: addressesv1.GroupVersion, Name: addressesv1.Resource, Storage: a.policyAddresses.Storage(),
	}}
}

// runPolicyAddresses computes the addresses of network policies.
func (a *Assembly) runPolicyAddresses(ctx context.Context) error { return a.policyAddresses.Run(ctx) }

// runKubernetesService maintains the Service default/kubernetes.
func (a *Assembly) runKubernetesService(ctx context.Context) error {
	return (&serviceips.KubernetesService{
		Etcd: a.EtcdClient, Client: a.Client, Ranges: a.Config.services(), Address: a.AdvertisedEndpoint,
		Log: a.Log,
	}).Run(ctx)
}

// runDNSService maintains the Service kube-system/kube-dns.
func (a *Assembly) runDNSService(ctx context.Context) error {
	return (&serviceips.DNSService{Client: a.Client, Ranges: a.Config.services(), Log: a.Log}).Run(ctx)
}

// runServiceCIDR maintains the ServiceCIDR kubernetes.
func (a *Assembly) runServiceCIDR(ctx context.Context) error {
	return (&serviceips.ServiceCIDR{Client: a.Client, Ranges: a.Config.services(), Log: a.Log}).Run(ctx)
}

// runServiceRepair reconciles the claims of addresses and ports with the Services.
func (a *Assembly) runServiceRepair(ctx context.Context) error {
	events, stop := newEventRecorder(ctx, a.Client, "service-repair")
	defer stop()
	return (&serviceips.Repairer{Etcd: a.EtcdClient, Client: a.Client, Ranges: a.Config.services(), Events: events,
		Log: a.Log, Interval: a.ServiceRepairInterval}).Run(ctx)
}
