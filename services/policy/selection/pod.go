package selection

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is the part of a pod that network policies depend on. It is never modified.
type Pod struct {
	Name        types.NamespacedName
	UID         types.UID
	Labels      Labels
	HostNetwork bool
	Member
}

// Member is a member of a group, in the form that a control server can publish.
type Member struct {
	// Addresses are the addresses of the pod. A pod that has ended has none, because its addresses
	// may be in use by another pod.
	Addresses []netip.Addr
	// Ports are the named container ports of the pod.
	Ports []NamedPort
}

// NamedPort is a container port with a name.
type NamedPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Protocol is an IP protocol number.
type Protocol uint8

// Protocols that a NetworkPolicy can name.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// ParseProtocol returns the protocol with the given name. An empty name means TCP.
func ParseProtocol(name corev1.Protocol) (p Protocol, ok bool) {
	switch name {
	case corev1.ProtocolTCP, "":
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	case corev1.ProtocolSCTP:
		return SCTP, true
	}
	return 0, false
}

// String returns the name of the protocol in the Kubernetes API.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return string(corev1.ProtocolTCP)
	case UDP:
		return string(corev1.ProtocolUDP)
	case SCTP:
		return string(corev1.ProtocolSCTP)
	}
	return "unknown"
}

// FromPod returns the compact form of a pod with the addresses of its status.
func FromPod(pod *corev1.Pod) *Pod {
	var addresses []netip.Addr
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		texts := []string{pod.Status.PodIP}
		for _, ip := range pod.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(addresses, a.Unmap()) {
				addresses = append(addresses, a.Unmap())
			}
		}
	}
	return FromPodAt(pod, addresses)
}

// FromPodAt returns the compact form of a pod with the given addresses. A node uses it for its own
// pods, whose addresses it knows before the status has them.
func FromPodAt(pod *corev1.Pod, addresses []netip.Addr) *Pod {
	p := &Pod{
		Name: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID,
		Labels: MakeLabels(pod.Labels), HostNetwork: pod.Spec.HostNetwork,
		Member: Member{Addresses: slices.Clone(addresses)},
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if !servesTraffic(c, pod.Spec.InitContainers) {
				continue
			}
			for _, port := range c.Ports {
				protocol, ok := ParseProtocol(port.Protocol)
				if port.Name != "" && ok && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
					p.Ports = append(p.Ports, NamedPort{port.Name, protocol, uint16(port.ContainerPort)})
				}
			}
		}
	}
	return p
}

// TrimPod removes the fields of a pod that FromPod does not use, to save memory while a list is
// decoded.
func TrimPod(pod *corev1.Pod) {
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		Labels: pod.Labels,
	}
	spec := corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork}
	for _, c := range pod.Spec.InitContainers {
		spec.InitContainers = append(spec.InitContainers,
			corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	for _, c := range pod.Spec.Containers {
		spec.Containers = append(spec.Containers, corev1.Container{Ports: c.Ports})
	}
	pod.Spec = spec
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs}
}

// servesTraffic reports whether ports of the container count: those of init containers do only if
// the container is a sidecar.
func servesTraffic(c *corev1.Container, init []corev1.Container) bool {
	for i := range init {
		if &init[i] == c {
			return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return true
}

// Equal reports whether network policies treat both pods alike.
func (p *Pod) Equal(q *Pod) bool {
	return p.Name == q.Name && p.UID == q.UID && p.HostNetwork == q.HostNetwork &&
		slices.Equal(p.Labels, q.Labels) && slices.Equal(p.Addresses, q.Addresses) &&
		slices.Equal(p.Ports, q.Ports)
}

// selectable reports whether the pod can be a member of a group.
func (p *Pod) selectable() bool { return !p.HostNetwork && len(p.Addresses) > 0 }

// member returns the pod as a member of a group, or nil if there is no pod.
func (p *Pod) member() *Member {
	if p == nil {
		return nil
	}
	return &p.Member
}
