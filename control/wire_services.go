package control

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/pods"
	"berth/control/registry"
	"berth/control/serviceips"
)

// services returns the ranges for the addresses and ports of Services.
func (c *Config) services() serviceips.Ranges {
	return serviceips.Ranges{Addresses: c.ServiceCIDRs, Ports: c.ServiceNodePorts}
}

// serviceStores creates Services with their subresources.
func serviceStores(a *Assembly, kind *registry.Kind) (*registry.Store, map[string]rest.Storage, error) {
	if a.ServicesRouted {
		kind.Warnings = nil
	}
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
		PodTransport: pods.NewPodTransport(),
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

// runKubernetesService maintains the Service default/kubernetes.
func (a *Assembly) runKubernetesService(ctx context.Context) error {
	return (&serviceips.KubernetesService{
		Etcd: a.EtcdClient, Client: a.Client, Ranges: a.Config.services(), Address: a.AdvertisedEndpoint,
		ServicesRouted: a.ServicesRouted, Log: a.Log,
	}).Run(ctx)
}

// runServiceRepair reconciles the claims of addresses and ports with the Services.
func (a *Assembly) runServiceRepair(ctx context.Context) error {
	events, stop := newEventRecorder(ctx, a.Client, "service-repair")
	defer stop()
	return (&serviceips.Repairer{Etcd: a.EtcdClient, Client: a.Client, Ranges: a.Config.services(), Events: events,
		Log: a.Log, Interval: a.ServiceRepairInterval}).Run(ctx)
}
