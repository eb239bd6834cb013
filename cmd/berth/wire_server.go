package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/checkpoint"
	sourceapi "berth/agent/source/apiserver"
	statusapi "berth/agent/status/apiserver"
	"berth/cni/gateway"
	"berth/internal/apiclient"
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
	labels         map[string]string
	taints         []corev1.Taint
	podCIDRs       []string // pod CIDRs in the network configuration
	images         []corev1.ContainerImage
	imagesListedAt time.Time

	networkUnavailable bool // the condition NetworkUnavailable was set by an earlier process
}

func newCluster(b *berth, records map[types.UID]checkpoint.Record) (*cluster, error) {
	if err := node.ValidateNodeIPs(b.host.addrs); err != nil {
		return nil, err
	}
	c := b.config.Node
	j := &cluster{b: b, nodeReceived: make(chan struct{}), nameUnique: make(chan struct{})}
	var err error
	j.identity, err = apiclient.NewIdentity(apiclient.IdentityOptions{
		NodeName: b.config.NodeName, MachineID: node.SystemInfo().MachineID, Kubeconfig: b.config.Kubeconfig,
		Bootstrap: b.config.BootstrapKubeconfig, CertDir: b.config.CertDir,
		Rotate: c.RotateCertificates, UserAgent: "berth/" + version, QPS: c.APIQPS, Burst: c.APIBurst, Log: b.log,
	})
	if err != nil {
		return nil, err
	}
	j.client = j.identity.Client
	if b.config.Server.ServerTLSBootstrap {
		j.serving = j.identity.ServingCertificate(b.host.addrs)
	}
	heartbeat, err := j.client.Unthrottled()
	if err != nil {
		return nil, err
	}
	installation, err := node.InstallationID(b.config.StateDir)
	if err != nil {
		return nil, err
	}
	j.statusManager = statusapi.New(statusapi.Options{
		Client: j.client, NodeName: b.config.NodeName, Log: b.log,
		NodeUID: func() types.UID {
			return j.registration.UID()
		}, SourcesReady: func() bool { return b.agent.HasSynced() },
		StatusUpdated: b.metrics.ObserveStatusSync,
	})
	_, sub := b.events.Subscribe(eventQueueSize)
	j.events = statusapi.NewEventSender(statusapi.EventSenderOptions{
		Client: j.client, NodeName: b.config.NodeName, Subscription: sub, QPS: c.EventQPS, Burst: c.EventBurst,
		Log:  b.log,
		Busy: j.statusManager.PodsStarting,
	})
	j.source = sourceapi.New(sourceapi.Options{
		Client: j.client, NodeName: b.config.NodeName, PreviousPods: assignedPods(records), Log: b.log,
		OnPod: j.statusManager.PodUpdated, NodeRegistered: j.nodeReceived, NameUnique: j.nameUnique,
	})
	j.registration = registration.New(registration.Options{
		Client: j.client, HeartbeatClient: heartbeat, Name: b.config.NodeName, Installation: installation,
		RegisterNode: c.Register, Taints: c.Taints, ProviderID: c.ProviderID,
		StatusUpdateFrequency: c.StatusUpdateFrequency, StatusReportFrequency: c.StatusReportFrequency,
		LeaseDuration: c.LeaseDuration,
		Facts:         j.facts, OnNameVerified: func() { close(j.nameUnique) }, OnNode: j.nodeUpdated, Log: b.log,
		RecordEvent: j.events.RecordNodeEvent, OnLeaseRenewed: b.metrics.ObserveLeaseRenewal,
	})
	return j, j.makeGateway()
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

// assignedPods returns the persisted pods that the API server had assigned to this node.
func assignedPods(records map[types.UID]checkpoint.Record) (out []sourceapi.PreviousPod) {
	for _, r := range records {
		if r.Pod != nil && podspec.FromAPIServer(r.Pod) {
			out = append(out, sourceapi.PreviousPod{Pod: r.Pod, Objects: r.Objects})
		}
	}
	return out
}

// nodeUpdated applies a change of the Node: labels and taints affect admission.
func (j *cluster) nodeUpdated(n *corev1.Node) {
	if !maps.Equal(j.labels, n.Labels) || !equality.Semantic.DeepEqual(j.taints, n.Spec.Taints) {
		j.labels, j.taints = n.Labels, n.Spec.Taints
		j.b.admissionNode.Update(func(o *admission.Node) { o.Labels, o.Taints = n.Labels, n.Spec.Taints })
	}
	j.networkUnavailable = gateway.UnavailableByBerth(n)
	if j.b.config.Network.PodCIDRsFromNode && !slices.Equal(j.podCIDRs, n.Spec.PodCIDRs) && len(n.Spec.PodCIDRs) > 0 {
		if err := j.b.host.writeNetwork(n.Spec.PodCIDRs); err != nil {
			j.b.log.Error("pod network configuration failed", "ranges", n.Spec.PodCIDRs, "err", err)
		} else {
			j.podCIDRs = n.Spec.PodCIDRs
		}
	}
	j.nodeOnce.Do(func() { close(j.nodeReceived) })
}

// eventQueueSize is the number of events that can wait to be sent to the API server.
const eventQueueSize = 1000

const imagesMaxAge = time.Minute // maximum age of the image list in the node status

// facts returns the current node status.
func (j *cluster) facts(ctx context.Context) registration.Facts {
	b := j.b
	resources := b.devices.NodeResources()
	f := registration.Facts{
		Labels: b.host.labels, System: node.SystemInfo(),
		Capacity: withDevices(
			b.host.resources.Capacity,
			resources.Capacity,
		), Allocatable: withDevices(b.host.Allocatable(), resources.Allocatable),
		Addresses: []corev1.NodeAddress{},
	}
	for _, ip := range b.host.ips {
		f.Addresses = append(f.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	f.Addresses = append(f.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: b.config.NodeName})
	f.System.KubeletVersion = kubernetesVersion() + "+berth"
	if b.config.Server.Enabled {
		f.Port = int32(b.config.Server.Port)
	}
	if name, number, err := b.runtime.client.Version(ctx); err == nil {
		f.System.ContainerRuntimeVersion = name + "://" + number
	}
	if time.Since(j.imagesListedAt) > imagesMaxAge {
		if images, err := b.runtime.images.LargestImages(ctx, b.config.Node.StatusMaxImages); err == nil {
			j.images, j.imagesListedAt = images, time.Now()
		}
	}
	f.Images = j.images
	f.NotReady, f.Network = b.runtime.statuses.NotReady(), j.networkCondition()
	if b.drain.ShuttingDown() {
		f.NotReady = strings.Join(
			slices.DeleteFunc([]string{f.NotReady, "node is shutting down"}, func(s string) bool { return s == "" }),
			"; ",
		)
	}
	f.MemoryPressure, f.DiskPressure, f.PIDPressure = b.pressure.HasCondition(
		corev1.NodeMemoryPressure,
	), b.pressure.HasCondition(
		corev1.NodeDiskPressure,
	), b.pressure.HasCondition(
		corev1.NodePIDPressure,
	)
	if st := b.runtime.statuses.Latest(); st != nil {
		f.RuntimeHandlers = st.NodeHandlers()
		f.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &st.SupplementalGroupsPolicy}
	}
	return f
}
