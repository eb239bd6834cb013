package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/localservices"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/agent/status/events"
	"berth/cni"
	"berth/internal/apiclient"
	"berth/node"
	"berth/services"
	"berth/services/announce"
	"berth/services/dns"
	"berth/services/localaddress"
	"berth/services/nodeservices"
	"berth/services/policy"
	"berth/services/proxy"
)

// dnsSockets names the sockets of the DNS server to the service manager.
const dnsSockets = "berth-dns"

// nodeServices are the Services of the node, its service proxy and its DNS server.
type nodeServices struct {
	*nodeservices.Services

	store           *services.Store
	checkpoint      *services.Checkpoint
	proxy           *proxy.Proxy
	announcer       *announce.Announcer
	excluded        atomic.Bool             // from load balancers
	local           *localservices.Services // nil: not a standalone node with a manifest directory
	ignored         localservices.Ignored   // Services of files on a node that has joined a server
	endpointsNeeded chan struct{}
	policyStore     *policy.Store
	policies        *nodeservices.Policies
	policiesNeeded  chan bool // has whether addresses are read instead of pods
}

// newNodeServices connects the Services of the node, and restores those of an earlier process.
func (b *berth) newNodeServices() {
	s := &nodeServices{
		store: services.NewStore(), endpointsNeeded: make(chan struct{}), policiesNeeded: make(chan bool, 1),
	}
	b.services = s
	s.checkpoint = &services.Checkpoint{Store: s.store, Put: b.store.PutNodeValues}
	if err := s.checkpoint.Restore(b.nodeValues(services.CheckpointPrefix)); err != nil {
		b.log.Warn("stored Services partially unreadable", "err", err)
	}
	s.proxy = proxy.New(proxy.Options{
		Store: s.store, Node: b.proxyNode(nil), Metrics: proxy.NewMetrics(b.metrics.Registry()), Log: b.log,
	})
	s.announcer = b.newAnnouncer()
	s.Services = nodeservices.New(b.nodeServiceOptions())
	s.policyStore = policy.NewStore()
	s.policies = b.newPolicies()
	if e := s.policies.Enforcer(); e != nil {
		b.metrics.Registry().MustRegister(e)
	}
}

// nodeServiceOptions returns the options of the service proxy and the DNS server.
func (b *berth) nodeServiceOptions() nodeservices.Options {
	c, s := b.config.Network, b.services
	var standaloneDNS netip.Addr
	if b.config.Standalone() {
		standaloneDNS = localservices.DNSAddress(c.ServiceCIDR)
	}
	return nodeservices.Options{
		ProxySetting: string(c.ServiceProxy), DNSSetting: string(c.ClusterDNSServer), Standalone: b.config.Standalone(),
		ServerVersion: func(ctx context.Context) (string, error) { return b.cluster.client.ServerVersion(ctx) },
		Store:         s.store, RunProxy: s.proxy.Run, RemoveProxy: func() error { return proxy.Remove(0) },
		RunAnnouncer: s.announcer.Run, LocalDNS: s.proxy.SetLocalDNS,
		ClusterDNS: c.ClusterDNS, StandaloneDNS: standaloneDNS, ClusterDomain: c.ClusterDomain,
		Addresses:  localaddress.Addresses{File: filepath.Join(b.config.StateDir, localaddress.FileName)},
		ResolvConf: c.ResolvConf, DNSMetrics: dns.NewMetrics(b.metrics.Registry()),
		Stored: b.nodeValues(nodeservices.Prefix), Put: b.store.PutNodeValue,
		EndpointsNeeded: func() { close(s.endpointsNeeded) },
		Sockets:         b.sockets.Files(), Keep: b.sockets.Keep, Log: b.log,
	}
}

// newAnnouncer connects the announcer of load balancer addresses.
func (b *berth) newAnnouncer() *announce.Announcer {
	resume, err := announce.DecodeTerms(b.nodeValues(announce.StoreKey)[announce.StoreKey])
	if err != nil {
		b.log.Warn("stored load balancer addresses are unreadable", "err", err)
	}
	return announce.New(announce.Options{
		Node: b.config.NodeName, Store: b.services.store, Serving: b.servesLoadBalancers,
		Resume: resume, Metrics: announce.NewMetrics(b.metrics.Registry()), Log: b.log,
		Persist: func(terms map[netip.Addr]uint32) {
			b.store.PutNodeValue(announce.StoreKey, announce.EncodeTerms(terms))
		},
		OnConflict: b.addressConflict,
	})
}

// addressConflict records an event of a Service about another host that has its address.
func (b *berth) addressConflict(c announce.Conflict) {
	ref := events.PodRef{
		Namespace: c.Service.Namespace, Name: c.Service.Name.Name, UID: c.Service.UID, Kind: "Service",
		APIVersion: "v1",
	}
	if ref.UID == "" { // stored by an earlier release, and the API server has not answered yet
		ref.UID = types.UID("service-" + c.Service.Name.String())
	}
	ev := events.Event{Type: corev1.EventTypeWarning, Reason: "LoadBalancerAddressConflict", Message: c.Message()}
	if c.Over {
		ev.Type, ev.Reason = corev1.EventTypeNormal, "LoadBalancerAddressFree"
	}
	b.events.PodCreated(ref.UID)
	b.events.Record(ref, ev)
	b.events.PodDeleted(ref.UID) // limits how long the events are kept
}

// servesLoadBalancers reports whether this node can serve the traffic of load balancers. Rules stay when a later
// sync fails.
func (b *berth) servesLoadBalancers() bool {
	return !b.services.proxy.Status().LastSync.IsZero() && !b.services.excluded.Load() && !b.drain.ShuttingDown()
}

// newPolicies connects the enforcement of network policies.
func (b *berth) newPolicies() *nodeservices.Policies {
	s := b.services
	s.policyStore.SetPodRanges(b.config.Network.CNIPodCIDRs)
	return nodeservices.NewPolicies(nodeservices.PolicyOptions{
		Setting: string(b.config.Network.NetworkPolicy), Store: s.policyStore,
		Publishes: func(ctx context.Context) (bool, error) {
			return b.cluster.client.Serves(ctx, apiclient.NetworkPolicyAddresses)
		},
		Restored: b.nodeValues(policy.CheckpointPrefix), PutAll: b.store.PutNodeValues,
		Stored: b.nodeValues(nodeservices.Prefix), Put: b.store.PutNodeValue,
		Needed:    func(addresses bool) { s.policiesNeeded <- addresses },
		OnProblem: func(pod *corev1.Pod, message string) { b.warnPod(pod, "NetworkPolicyNotInstalled", message) },
		Log:       b.log,
	})
}

// podNetwork is notified when the network of a pod is set up or torn down.
type podNetwork struct {
	hostPorts cni.HostPorts
	policies  *nodeservices.Policies
}

// PodIPsChanged implements pod.HostPorts.
func (p podNetwork) PodIPsChanged(pod *corev1.Pod, ips []string) {
	p.hostPorts.PodIPsChanged(pod, ips)
	p.policies.PodIPsChanged(pod, ips)
}

// podAdopted does for a running pod what an earlier process may not have done.
func (b *berth) podAdopted(pod *corev1.Pod, sandboxes []plan.Sandbox) {
	cni.HostPorts{Log: b.log}.PodAdopted(pod, sandboxes)
	b.services.policies.PodAdopted(pod, sandboxes)
}

// nodeValues returns the values of the local store whose keys have a prefix.
func (b *berth) nodeValues(prefix string) map[string][]byte {
	values, err := b.store.NodeValues(prefix)
	if err != nil {
		b.log.Warn("local store partially unreadable", "prefix", prefix, "err", err)
	}
	return values
}

// proxyNode returns this node as the service proxy sees it. n is the Node object; nil: not known.
func (b *berth) proxyNode(n *corev1.Node) proxy.Node {
	out := proxy.Node{
		Name: b.config.NodeName, Zone: b.host.labels[corev1.LabelTopologyZone], Addresses: b.host.addrs,
		NodePortAddresses: b.host.addrs, PodCIDRs: b.config.Network.CNIPodCIDRs,
	}
	if n != nil {
		out.Zone, out.PodCIDRs = n.Labels[corev1.LabelTopologyZone], node.PodCIDRs(n, out.PodCIDRs)
	}
	return out
}

// newLocalServices connects the Services of manifest files.
func (b *berth) newLocalServices() *localservices.Services {
	return localservices.New(localservices.Options{
		NodeName: b.config.NodeName, Range: b.config.Network.ServiceCIDR, Services: b.services.store,
		Node: b.loadBalancerNode(),
		Put:  b.store.PutNodeValues, Stored: b.nodeValues(localservices.Prefix), Log: b.log,
		Record: func(ref corev1.ObjectReference, reason, message string) {
			b.events.Record(eventRef(ref), events.Event{
				Type: corev1.EventTypeWarning, Reason: reason, Message: message,
			})
		},
		Created: b.events.PodCreated, Deleted: b.events.PodDeleted,
		Watch: func(ctx context.Context, handle func(status.Event) error) error {
			return b.agent.StatusCache.Watch(ctx, handle)
		},
	})
}

// loadBalancerNode returns the addresses of the node and the ports of them that stay with it.
func (b *berth) loadBalancerNode() localservices.Node {
	out := localservices.Node{Addresses: b.host.addrs, Reserved: map[string]string{"TCP/22": "SSH"}}
	if port := b.config.Server.Port; b.config.Server.Enabled && port != 0 {
		out.Reserved[fmt.Sprintf("TCP/%d", port)] = "the node agent"
	}
	return out
}

// fileSource is the source of manifest files, whose Services go to the node services.
type fileSource struct {
	b     *berth
	inner interface {
		Run(ctx context.Context, emit func(source.Snapshot)) error
	}
}

// Run passes the snapshots on.
func (f fileSource) Run(ctx context.Context, emit func(source.Snapshot)) error {
	return f.inner.Run(ctx, func(snap source.Snapshot) {
		emit(f.b.services.setFiles(f.b, snap))
	})
}

// setFiles passes the Services of files on, and returns the snapshot with what they define for pods.
func (s *nodeServices) setFiles(b *berth, snap source.Snapshot) source.Snapshot {
	if s.local != nil {
		return s.local.SetFiles(snap)
	}
	s.ignored.Report(snap, b.log)
	return snap
}

// start starts the components.
func (s *nodeServices) start(ctx context.Context, components *group) {
	components.run("service checkpoint", func() error { s.checkpoint.Run(ctx); return nil })
	components.run("network policies", func() error { return s.policies.Run(ctx) })
	components.run("node services", func() error { return s.Run(ctx) })
	if s.local != nil {
		components.run("services of files", func() error { return s.local.Run(ctx) })
	}
}

// clusterDNS returns the addresses of the cluster's DNS for pods.
func (s *nodeServices) clusterDNS() []string { return node.AddressStrings(s.ClusterDNS()) }
