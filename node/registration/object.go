package registration

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/podspec"
)

// Facts is the current state of the node.
type Facts struct {
	Labels                                    map[string]string
	Addresses                                 []corev1.NodeAddress
	Capacity, Allocatable                     corev1.ResourceList
	System                                    corev1.NodeSystemInfo
	Images                                    []corev1.ContainerImage
	RuntimeHandlers                           []corev1.NodeRuntimeHandler
	Features                                  *corev1.NodeFeatures
	DeclaredFeatures                          []string
	Port                                      int32  // port of the kubelet API; 0: none
	NotReady                                  string // why the node is not ready; empty if it is
	MemoryPressure, DiskPressure, PIDPressure bool   // the conditions of these names
	VolumesInUse                              []corev1.UniqueVolumeName
	// Network is the condition NetworkUnavailable. Nil: another component maintains it.
	Network *NetworkCondition
}

// NetworkCondition is the condition NetworkUnavailable.
type NetworkCondition struct {
	Unavailable     bool
	Reason, Message string
}

// ownsLabel reports whether the node always keeps a label up to date.
func ownsLabel(key string) bool {
	return strings.HasPrefix(key, podspec.FeatureLabelPrefix) ||
		slices.Contains([]string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable}, key)
}

// newNode returns the Node to register. last is the deleted Node, or nil. Its labels and its
// unschedulable state are kept, because deleting a cordoned Node must not make it schedulable
// again.
func (p *Registrar) newNode(f Facts, last *corev1.Node) *corev1.Node {
	n := &corev1.Node{}
	n.Name = p.opt.Name
	n.Labels = maps.Clone(f.Labels)
	n.Annotations = p.annotations()
	n.Spec.Taints = slices.Clone(p.opt.Taints)
	n.Spec.ProviderID = p.opt.ProviderID
	n.Status = p.status(f, nil)
	if last == nil {
		return n
	}
	n.Labels = map[string]string{}
	for key, value := range last.Labels {
		if mayRegisterLabel(key) && !strings.HasPrefix(key, podspec.FeatureLabelPrefix) {
			n.Labels[key] = value
		}
	}
	maps.Copy(n.Labels, f.Labels)
	n.Spec.Unschedulable = last.Spec.Unschedulable
	// The server maintains the taints of conditions.
	n.Spec.Taints = slices.DeleteFunc(slices.Clone(last.Spec.Taints), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, corev1.LabelNamespaceSuffixNode+"/")
	})
	return n
}

// mayRegisterLabel reports whether a node may set a label when it registers itself. The
// NodeRestriction admission plugin limits the labels in the Kubernetes domains.
func mayRegisterLabel(label string) bool {
	domain, _, prefixed := strings.Cut(label, "/")
	under := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	switch {
	case !prefixed, !under("kubernetes.io") && !under("k8s.io"):
		return true
	case under(corev1.LabelNamespaceNodeRestriction):
		return false
	case under(corev1.LabelNamespaceSuffixNode), under(corev1.LabelNamespaceSuffixKubelet):
		return true
	}
	return slices.Contains([]string{
		corev1.LabelTopologyZone,
		corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone,
		corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType,
		corev1.LabelInstanceTypeStable,
	}, label)
}

// InstallationAnnotation distinguishes installations of berth that use the same node name.
const InstallationAnnotation = "berth.dev/installation"

// attachAnnotation asks the controller to attach the volumes of CSI drivers. Kubelets set it too.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// annotations returns the annotations that the node keeps up to date.
func (p *Registrar) annotations() map[string]string {
	return map[string]string{InstallationAnnotation: p.opt.Installation, attachAnnotation: "true"}
}

// status returns the node status. has is the one on the server.
func (p *Registrar) status(f Facts, has *corev1.NodeStatus) corev1.NodeStatus {
	st := corev1.NodeStatus{
		Capacity: f.Capacity, Allocatable: allocatable(f, has), Addresses: f.Addresses, NodeInfo: f.System,
		Images:          f.Images,
		RuntimeHandlers: f.RuntimeHandlers, Features: f.Features, DeclaredFeatures: f.DeclaredFeatures,
		VolumesInUse: f.VolumesInUse,
	}
	st.DaemonEndpoints.KubeletEndpoint.Port = f.Port
	st.Conditions = p.conditions(f, has)
	st.Addresses = withProviderAddresses(f.Addresses, has)
	return st
}

// withProviderAddresses returns the node's own addresses, and those of the Node that only a cloud
// provider sets. Without them, the node and the controller of an external cloud provider would replace
// each other's addresses.
func withProviderAddresses(own []corev1.NodeAddress, has *corev1.NodeStatus) []corev1.NodeAddress {
	if has == nil {
		return own
	}
	out := slices.Clone(own)
	for _, a := range has.Addresses {
		sets := func(o corev1.NodeAddress) bool { return o.Type == a.Type }
		switch a.Type {
		case corev1.NodeExternalIP, corev1.NodeExternalDNS, corev1.NodeInternalDNS:
			if !slices.ContainsFunc(own, sets) {
				out = append(out, a)
			}
		}
	}
	return out
}

// allocatable returns the allocatable resources of the node, and the extended resources that an
// administrator has added to the capacity of the Node.
func allocatable(f Facts, has *corev1.NodeStatus) corev1.ResourceList {
	out := maps.Clone(f.Allocatable)
	if has == nil {
		return out
	}
	for name, q := range has.Capacity {
		domain, _, extended := strings.Cut(string(name), "/")
		if _, own := f.Capacity[name]; own || !extended || strings.HasSuffix(domain, "kubernetes.io") {
			continue
		}
		out[name] = q
	}
	return out
}

// conditions returns the node conditions. An unchanged condition keeps its transition time.
func (p *Registrar) conditions(f Facts, has *corev1.NodeStatus) []corev1.NodeCondition {
	now := metav1.NewTime(p.opt.Now().Truncate(time.Second))
	choose := func(t corev1.NodeConditionType, is bool, yes, no, yesText, noText string) corev1.NodeCondition {
		c := corev1.NodeCondition{
			Type:               t,
			Status:             corev1.ConditionFalse,
			Reason:             no,
			Message:            noText,
			LastHeartbeatTime:  now,
			LastTransitionTime: now,
		}
		if is {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yes, yesText
		}
		return c
	}
	all := []corev1.NodeCondition{
		choose(corev1.NodeMemoryPressure, f.MemoryPressure, "KubeletHasInsufficientMemory",
			"KubeletHasSufficientMemory",
			"kubelet has insufficient memory available", "kubelet has sufficient memory available"),
		choose(corev1.NodeDiskPressure, f.DiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
			"kubelet has disk pressure", "kubelet has no disk pressure"),
		choose(corev1.NodePIDPressure, f.PIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
			"kubelet has insufficient PID available", "kubelet has sufficient PID available"),
		choose(
			corev1.NodeReady,
			f.NotReady == "",
			"KubeletReady",
			"KubeletNotReady",
			"kubelet is posting ready status",
			f.NotReady,
		),
	}
	if n := f.Network; n != nil {
		all = append(all, choose(corev1.NodeNetworkUnavailable, n.Unavailable, n.Reason, n.Reason, n.Message,
			n.Message))
	}
	if has == nil {
		return all
	}
	for i := range all {
		for _, was := range has.Conditions {
			if was.Type == all[i].Type && was.Status == all[i].Status {
				all[i].LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	return all
}

// sameStatus compares two statuses without their times.
func sameStatus(a, b *corev1.NodeStatus) bool {
	strip := func(s *corev1.NodeStatus) corev1.NodeStatus {
		out := *s
		out.Conditions = slices.Clone(s.Conditions)
		for i := range out.Conditions {
			out.Conditions[i].LastHeartbeatTime, out.Conditions[i].LastTransitionTime = metav1.Time{}, metav1.Time{}
		}
		return out
	}
	x, y := strip(a), strip(b)
	return equality.Semantic.DeepEqual(&x, &y)
}

// conditionsMatch reports whether the server has the conditions that were last reported.
func conditionsMatch(reported, has *corev1.NodeStatus) bool {
	for _, c := range reported.Conditions {
		i := slices.IndexFunc(has.Conditions, func(h corev1.NodeCondition) bool { return h.Type == c.Type })
		if i < 0 || has.Conditions[i].Status != c.Status || has.Conditions[i].Reason != c.Reason {
			return false
		}
	}
	return true
}
