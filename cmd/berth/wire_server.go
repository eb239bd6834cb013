package main

import (
	"cmp"
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

// joined is what a node that has joined a server has beside the rest.
type joined struct {
	b        *berth
	client   *apiclient.Client
	identity *apiclient.Identity
	serving  *apiclient.Certificate // of the node's own server, issued by the server; nil: none is asked for
	source   *sourceapi.Source
	posts    *statusapi.Posts
	events   *statusapi.Events
	presence *registration.Registrar
	gateway  *gateway.Gateway // nil: how pods reach those of other nodes is not berth's matter

	known sync.Once
	node  chan struct{} // closed when the server has told its Node
	alone chan struct{} // closed when the node's name is settled
	// Of presence alone.
	labels   map[string]string
	taints   []corev1.Taint
	ranges   []string // of pods, as the network configuration has them
	images   []corev1.ContainerImage
	imagesAt time.Time

	unavailable bool // the server has that by an earlier life's words
}

func newJoined(b *berth, records map[types.UID]checkpoint.Record) (*joined, error) {
	if err := node.ValidateNodeIPs(b.host.addrs); err != nil {
		return nil, err
	}
	c := b.config.Node
	j := &joined{b: b, node: make(chan struct{}), alone: make(chan struct{})}
	var err error
	j.identity, err = apiclient.NewIdentity(apiclient.IdentityOptions{
		NodeName: b.config.NodeName, MachineID: node.SystemInfo().MachineID, Kubeconfig: b.config.Kubeconfig, Bootstrap: b.config.BootstrapKubeconfig, CertDir: b.config.CertDir,
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
	j.posts = statusapi.New(statusapi.Options{
		Client: j.client, NodeName: b.config.NodeName, Log: b.log,
		NodeUID: func() types.UID { return j.presence.UID() }, Settled: func() bool { return b.agent.HasSynced() },
		Posted: b.metrics.ObserveStatusSync,
	})
	_, told := b.events.Subscribe(eventsWaiting)
	j.events = statusapi.NewEvents(statusapi.EventsOptions{
		Client: j.client, NodeName: b.config.NodeName, Told: told, QPS: c.EventQPS, Burst: c.EventBurst, Log: b.log,
		Busy: j.posts.ComingUp,
	})
	j.source = sourceapi.New(sourceapi.Options{
		Client: j.client, NodeName: b.config.NodeName, PreviousPods: assignedPods(records), Log: b.log, OnPod: j.posts.Heard, NodeRegistered: j.node, NameUnique: j.alone,
	})
	j.presence = registration.New(registration.Options{
		Client: j.client, HeartbeatClient: heartbeat, Name: b.config.NodeName, Installation: installation,
		RegisterNode: c.Register, Taints: c.Taints, ProviderID: c.ProviderID,
		StatusUpdateFrequency: c.StatusUpdateFrequency, StatusReportFrequency: c.StatusReportFrequency, LeaseDuration: c.LeaseDuration,
		Facts: j.facts, OnNameVerified: func() { close(j.alone) }, OnNode: j.heardNode, Log: b.log, RecordEvent: j.events.OfNode, OnLeaseRenewed: b.metrics.ObserveLeaseRenewal,
	})
	return j, j.makeGateway()
}

// begin starts what belongs to the server.
func (j *joined) begin(ctx context.Context, parts *group) {
	if cert := j.identity.Certificate; cert != nil {
		parts.run("client certificate", func() error { return cert.Run(ctx) })
	}
	if j.serving != nil {
		parts.run("serving certificate", func() error { return j.serving.Run(ctx) })
	}
	parts.run("node", func() error { return j.presence.Run(ctx) })
	parts.run("posts", func() error { return j.posts.Run(ctx) })
	parts.run("events", func() error { return j.events.Run(ctx) })
	if j.gateway != nil {
		parts.run("nodes", func() error { j.followNodes(ctx); return nil })
		parts.run("pod routes", func() error { return j.gateway.Run(ctx) })
	}
}

// assignedPods are the pods of the agent's last life that a server had assigned.
func assignedPods(records map[types.UID]checkpoint.Record) (out []sourceapi.PreviousPod) {
	for _, r := range records {
		if r.Pod != nil && podspec.FromAPIServer(r.Pod) {
			out = append(out, sourceapi.PreviousPod{Pod: r.Pod, Objects: r.Objects})
		}
	}
	return out
}

// heardNode takes in the node as the server has it: its labels and taints decide
// what pods may run here.
func (j *joined) heardNode(n *corev1.Node) {
	if !maps.Equal(j.labels, n.Labels) || !equality.Semantic.DeepEqual(j.taints, n.Spec.Taints) {
		j.labels, j.taints = n.Labels, n.Spec.Taints
		j.b.offering.change(func(o *admission.Node) { o.Labels, o.Taints = n.Labels, n.Spec.Taints })
	}
	j.unavailable = unavailable(n)
	if j.b.config.Network.PodCIDRsFromNode && !slices.Equal(j.ranges, n.Spec.PodCIDRs) && len(n.Spec.PodCIDRs) > 0 {
		if err := j.b.host.writeNetwork(n.Spec.PodCIDRs); err != nil {
			j.b.log.Error("the pod range that the server gave the node", "ranges", n.Spec.PodCIDRs, "err", err)
		} else {
			j.ranges = n.Spec.PodCIDRs
		}
	}
	j.known.Do(func() { close(j.node) })
}

// eventsWaiting is how many events may wait for the server's sender to take them.
const eventsWaiting = 1000

const imagesAge = time.Minute // of what the server is told of images

// facts are what the node is now.
func (j *joined) facts(ctx context.Context) registration.Facts {
	b := j.b
	offered := b.devices.NodeResources()
	f := registration.Facts{
		Labels: b.host.labels, System: node.SystemInfo(),
		Capacity: withDevices(b.host.capacity, offered.Capacity), Allocatable: withDevices(b.host.Allocatable(), offered.Allocatable),
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
	if time.Since(j.imagesAt) > imagesAge {
		if images, err := b.runtime.images.LargestImages(ctx, b.config.Node.StatusMaxImages); err == nil {
			j.images, j.imagesAt = images, time.Now()
		}
	}
	f.Images = j.images
	f.NotReady, f.Network = b.runtime.notReady(), j.podNetwork()
	if b.drain.ShuttingDown() {
		f.NotReady = strings.Join(slices.DeleteFunc([]string{f.NotReady, "node is shutting down"}, func(s string) bool { return s == "" }), "; ")
	}
	f.MemoryPressure, f.DiskPressure, f.PIDPressure = b.pressure.HasCondition(corev1.NodeMemoryPressure), b.pressure.HasCondition(corev1.NodeDiskPressure), b.pressure.HasCondition(corev1.NodePIDPressure)
	if st := b.runtime.status.Load(); st != nil {
		for _, name := range slices.Sorted(maps.Keys(st.Handlers)) {
			h := st.Handlers[name]
			f.RuntimeHandlers = append(f.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: name, Features: &corev1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: &h.RecursiveReadOnlyMounts, UserNamespaces: &h.UserNamespaces,
			}})
		}
		f.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &st.SupplementalGroupsPolicy}
	}
	return f
}

// unwell says what is wrong with the container runtime; empty: nothing.
func (r *runtime) unwell() string {
	st := r.status.Load()
	switch down := r.down.Load(); {
	case down != nil:
		return "container runtime is down: " + *down
	case st == nil:
		return "container runtime status check may not have completed yet"
	case !st.Ready:
		return "container runtime is not ready: " + cmp.Or(st.Reason, "it does not say why")
	}
	return ""
}

// notReady says why the node can take no pods; empty: it can.
func (r *runtime) notReady() string {
	if why := r.unwell(); why != "" {
		return why
	}
	if n := r.network(); !n.Ready {
		return "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:" + n.Message
	}
	return ""
}
