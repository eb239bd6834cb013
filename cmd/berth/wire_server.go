package main

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/checkpoint"
	"berth/agent/source"
	sourceapi "berth/agent/source/apiserver"
	statusapi "berth/agent/status/apiserver"
	"berth/cni/gateway"
	"berth/internal/apiclient"
	"berth/internal/nodeconfig"
	"berth/internal/telemetry"
	"berth/node"
	"berth/node/registration"
	"berth/podspec"
)

// cluster contains the components of a node in a cluster.
type cluster struct {
	b             *berth
	client        *apiclient.Client
	identity      *apiclient.Identity
	serving       *apiclient.Certificate // serving certificate signed by the cluster; nil: not requested
	source        *sourceapi.Source
	statusManager *statusapi.Manager
	events        *statusapi.EventSender
	registration  *registration.Registrar
	gateway       *gateway.Gateway // nil: routes to pods of other nodes are not managed by berth

	nodeOnce     sync.Once
	nodeReceived chan struct{} // closed when the Node was received
	nameUnique   chan struct{} // closed when the node name is known to be unique
	// Used only by the node registration.
	changes registration.Changes
	images  registration.ImageList

	networkUnavailable bool // the condition NetworkUnavailable was set by an earlier process
}

func newCluster(b *berth, records map[types.UID]checkpoint.Record) (j *cluster, err error) {
	if err := node.ValidateNodeIPs(b.host.addrs); err != nil {
		return nil, err
	}
	j = &cluster{b: b, nodeReceived: make(chan struct{}), nameUnique: make(chan struct{})}
	if err := j.identify(); err != nil {
		return nil, err
	}
	j.statusManager = statusapi.New(statusapi.Options{
		Client: j.client, NodeName: b.config.NodeName, Log: b.log,
		NodeUID: func() types.UID { return j.registration.UID() },
		StaticPodMayExist: func(namespace, name string) bool {
			return !b.agent.HasSynced() || source.HasStaticPod(b.agent.Snapshots(), namespace, name)
		},
		StatusUpdated: b.metrics.ObserveStatusSync,
	})
	j.events = j.newEventSender()
	j.source = j.newSource(records)
	if j.registration, err = j.newRegistrar(); err != nil {
		return nil, err
	}
	return j, j.makeGateway()
}

// newSource creates the source of the pods that the API server has bound to the node.
func (j *cluster) newSource(records map[types.UID]checkpoint.Record) *sourceapi.Source {
	b := j.b
	return sourceapi.New(sourceapi.Options{
		Client: j.client, NodeName: b.config.NodeName, PreviousPods: sourceapi.AssignedPods(records), Log: b.log,
		OnPod: j.podUpdated, Policies: b.services.policyStore, PoliciesNeeded: b.services.policiesNeeded,
		NodeRegistered: j.nodeReceived, NameUnique: j.nameUnique,
		Services: b.services.store, EndpointsNeeded: b.services.endpointsNeeded,
		ServicesBeforePods: b.config.Network.ClusterDNSServer != nodeconfig.Off &&
			len(b.config.Network.ClusterDNS) == 0,
	})
}

// podUpdated applies a change of a pod of this node on the server.
func (j *cluster) podUpdated(pod *corev1.Pod, deleted bool) {
	j.statusManager.PodUpdated(pod, deleted)
	j.b.services.policies.PodUpdated(pod, deleted)
}

// identify creates the client with the identity of the node.
func (j *cluster) identify() (err error) {
	b, c := j.b, j.b.config.Node
	j.identity, err = apiclient.NewIdentity(apiclient.IdentityOptions{
		NodeName: b.config.NodeName, MachineID: node.SystemInfo().MachineID, Kubeconfig: b.config.Kubeconfig,
		Bootstrap: b.config.BootstrapKubeconfig, CertDir: b.config.CertDir,
		Rotate: c.RotateCertificates, UserAgent: "berth/" + version, QPS: c.APIQPS, Burst: c.APIBurst, Log: b.log,
		OnRequest:                   func(r apiclient.Request) { b.metrics.ObserveRequest(telemetry.Request(r)) },
		OnClientCertificateError:    b.metrics.CountClientCertificateError,
		OnServingCertificateError:   b.metrics.CountServingCertificateError,
		OnServingCertificateRotated: b.metrics.ObserveServingCertificateRotation,
	})
	if err != nil {
		return err
	}
	j.client = j.identity.Client
	if b.config.Server.ServerTLSBootstrap {
		j.serving = j.identity.ServingCertificate(b.host.addrs)
	}
	return nil
}

func (j *cluster) newEventSender() *statusapi.EventSender {
	_, sub := j.b.events.Subscribe(eventQueueSize)
	return statusapi.NewEventSender(statusapi.EventSenderOptions{
		Client: j.client, NodeName: j.b.config.NodeName, Subscription: sub,
		QPS: j.b.config.Node.EventQPS, Burst: j.b.config.Node.EventBurst, Log: j.b.log,
		Busy: j.statusManager.PodsStarting,
	})
}

func (j *cluster) newRegistrar() (*registration.Registrar, error) {
	b, c := j.b, j.b.config.Node
	heartbeat, err := j.client.Unthrottled()
	if err != nil {
		return nil, err
	}
	installation, err := node.InstallationID(b.config.StateDir)
	if err != nil {
		return nil, err
	}
	j.followNode()
	return registration.New(registration.Options{
		Client: j.client, HeartbeatClient: heartbeat, Name: b.config.NodeName, Installation: installation,
		RegisterNode: c.Register, Taints: c.Taints, ProviderID: c.ProviderID,
		StatusUpdateFrequency: c.StatusUpdateFrequency, StatusReportFrequency: c.StatusReportFrequency,
		LeaseDuration: c.LeaseDuration,
		Facts:         j.facts, OnNameVerified: func() { close(j.nameUnique) }, OnNode: j.nodeUpdated, Log: b.log,
		RecordEvent: j.events.RecordNodeEvent, OnLeaseRenewed: b.metrics.ObserveLeaseRenewal,
	}), nil
}

// followNode connects what depends on the Node or is part of its status.
func (j *cluster) followNode() {
	b := j.b
	j.changes = registration.Changes{OnLabelsOrTaints: j.updateAdmission, Log: b.log}
	if b.config.Network.PodCIDRsFromNode {
		j.changes.OnPodCIDRs = b.host.writeNetwork
	}
	j.images.List = func(ctx context.Context) ([]corev1.ContainerImage, error) {
		return b.runtime.images.LargestImages(ctx, b.config.Node.StatusMaxImages)
	}
}

// start starts the components of a node in a cluster.
func (j *cluster) start(ctx context.Context, components *group) {
	if cert := j.identity.Certificate; cert != nil {
		components.run("client certificate", func() error { return cert.Run(ctx) })
	}
	if j.serving != nil {
		components.run("serving certificate", func() error { return j.serving.Run(ctx) })
	}
	components.run("node", func() error { return j.registration.Run(ctx) })
	components.run("status manager", func() error { return j.statusManager.Run(ctx) })
	components.run("events", func() error { return j.events.Run(ctx) })
	if j.gateway != nil {
		components.run("nodes", func() error { j.gateway.Watch(ctx, j.client, j.b.config.NodeName); return nil })
		components.run("pod routes", func() error { return j.gateway.Run(ctx) })
	}
}

// eventQueueSize is the number of events that can wait to be sent to the API server.
const eventQueueSize = 1000

// nodeUpdated applies a change of the Node.
func (j *cluster) nodeUpdated(n *corev1.Node) {
	j.networkUnavailable = gateway.UnavailableByBerth(n)
	here := j.b.proxyNode(n)
	j.b.services.proxy.SetNode(here)
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	j.b.services.excluded.Store(excluded)
	j.b.services.policyStore.SetPodRanges(here.PodCIDRs)
	j.b.csi.SetNode(n)
	j.changes.Apply(n)
	j.nodeOnce.Do(func() { close(j.nodeReceived) })
}

// updateAdmission applies a change of labels and taints, which affect admission.
func (j *cluster) updateAdmission(labels map[string]string, taints []corev1.Taint) {
	j.b.admissionNode.Update(func(o *admission.Node) { o.Labels, o.Taints = labels, taints })
}

// facts returns the current node status.
func (j *cluster) facts(ctx context.Context) registration.Facts {
	b, resources := j.b, j.b.devices.NodeResources()
	f := registration.Facts{
		Labels: b.host.labels, System: j.system(ctx), Images: j.images.Images(ctx),
		Addresses:        registration.NodeAddresses(b.host.ips, b.config.NodeName),
		Capacity:         withDevices(b.host.resources.Capacity, resources.Capacity),
		Allocatable:      withDevices(b.host.Allocatable(), resources.Allocatable),
		DeclaredFeatures: podspec.DeclaredFeatures(),
		NotReady:         j.notReady(),
		Network:          j.networkCondition(),
		VolumesInUse:     b.csi.VolumesInUse(),
		MemoryPressure:   b.pressure.HasCondition(corev1.NodeMemoryPressure),
		DiskPressure:     b.pressure.HasCondition(corev1.NodeDiskPressure),
		PIDPressure:      b.pressure.HasCondition(corev1.NodePIDPressure),
	}
	if b.config.Server.Enabled {
		f.Port = int32(b.config.Server.Port)
	}
	if st := b.runtime.statuses.Latest(); st != nil {
		f.RuntimeHandlers = st.NodeHandlers()
		f.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &st.SupplementalGroupsPolicy}
	}
	return f
}

func (j *cluster) system(ctx context.Context) corev1.NodeSystemInfo {
	s := node.SystemInfo()
	s.KubeletVersion = node.KubernetesVersion() + "+berth"
	if name, number, err := j.b.runtime.client.Version(ctx); err == nil {
		s.ContainerRuntimeVersion = name + "://" + number
	}
	return s
}

// notReady returns why the node is not ready; empty: it is ready.
func (j *cluster) notReady() string {
	reasons := []string{j.b.runtime.statuses.NotReady()}
	if j.b.drain.ShuttingDown() {
		reasons = append(reasons, "node is shutting down")
	}
	return registration.NotReadyReason(reasons...)
}
