package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"

	"berth/control/pods"
	"berth/control/registry"
	"berth/control/serviceips"
)

// services returns the ranges for the addresses and ports of Services.
func (c *Config) services() serviceips.Ranges {
	return serviceips.Ranges{Addresses: c.ServiceCIDRs, Ports: c.ServiceNodePorts}
}

// minServiceHostBits is the minimum number of host bits of a Service CIDR: the address of
// default/kubernetes and two more.
const minServiceHostBits = 2

func (c *Config) checkServices() error {
	if len(c.ServiceCIDRs) == 0 {
		return errors.New("service-cluster-ip-range: required")
	}
	for i, r := range c.ServiceCIDRs {
		if !r.IsValid() || r.Addr().BitLen()-r.Bits() < minServiceHostBits {
			return fmt.Errorf("service-cluster-ip-range: %s is too small", r)
		}
		if i > 0 && r.Addr().Is4() == c.ServiceCIDRs[0].Addr().Is4() {
			return errors.New("service-cluster-ip-range: only one CIDR per IP family is allowed")
		}
		for _, p := range c.ClusterCIDRs {
			if p.Overlaps(r) {
				return fmt.Errorf("service-cluster-ip-range: %s overlaps cluster-cidr %s", r, p)
			}
		}
	}
	if c.ServiceNodePorts.First < 1 || c.ServiceNodePorts.Last < c.ServiceNodePorts.First {
		return fmt.Errorf("service-node-port-range: %s is not a port range", c.ServiceNodePorts)
	}
	if a := c.AdvertiseAddress; a.IsValid() && (a.IsUnspecified() || a.IsLoopback() || a.Zone() != "") {
		return fmt.Errorf("advertise-address: %s is not reachable for others", a)
	}
	return nil
}

// advertisedEndpoint returns where pods and other servers reach a listener at that address. The
// result is not valid if it listens on loopback only, or if this host has no usable address.
func advertisedEndpoint(c *Config, listens net.Addr) netip.AddrPort {
	at, err := netip.ParseAddrPort(listens.String())
	if err != nil {
		return netip.AddrPort{}
	}
	listening := at.Addr().Unmap().WithZone("")
	switch {
	case c.AdvertiseAddress.IsValid():
		return netip.AddrPortFrom(c.AdvertiseAddress.Unmap(), at.Port())
	case listening.IsLoopback():
		return netip.AddrPort{}
	case !listening.IsUnspecified():
		return netip.AddrPortFrom(listening, at.Port())
	}
	// the address of the default route, as in kube-apiserver
	if ip, err := utilnet.ResolveBindAddress(nil); err == nil {
		if a, ok := netip.AddrFromSlice(ip); ok && !a.IsLoopback() {
			return netip.AddrPortFrom(a.Unmap(), at.Port())
		}
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.AddrPort{}
	}
	for _, one := range all {
		if p, err := netip.ParsePrefix(one.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return netip.AddrPortFrom(p.Addr(), at.Port())
		}
	}
	return netip.AddrPort{}
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
	events, stop := a.newEventRecorder(ctx, "service-repair")
	defer stop()
	return (&serviceips.Repairer{Etcd: a.EtcdClient, Client: a.Client, Ranges: a.Config.services(), Events: events,
		Log: a.Log, Interval: a.ServiceRepairInterval}).Run(ctx)
}
