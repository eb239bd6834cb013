package registration

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Facts are what a node is now.
type Facts struct {
	Labels                                    map[string]string
	Addresses                                 []corev1.NodeAddress
	Capacity, Allocatable                     corev1.ResourceList
	System                                    corev1.NodeSystemInfo
	Images                                    []corev1.ContainerImage
	RuntimeHandlers                           []corev1.NodeRuntimeHandler
	Features                                  *corev1.NodeFeatures
	Port                                      int32  // of the node's server; 0: none
	NotReady                                  string // why the node is not ready; empty: it is
	MemoryPressure, DiskPressure, PIDPressure bool   // they are short
	// Network is how pods reach those of other nodes; nil: somebody else says so.
	Network *NetworkCondition
}

// NetworkCondition is the condition NetworkUnavailable.
type NetworkCondition struct {
	Unavailable     bool
	Reason, Message string
}

// owned are the labels that the node itself keeps right.
var owned = []string{corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable}

// object is the node as it registers. last is as the server had it before it was
// taken away, nil: it had none. What others have said there of the node holds on:
// who has cordoned it and deletes its Node does not want pods on it.
func (p *Registrar) object(f Facts, last *corev1.Node) *corev1.Node {
	n := &corev1.Node{}
	n.Name = p.opt.Name
	n.Labels = maps.Clone(f.Labels)
	n.Annotations = map[string]string{InstallationAnnotation: p.opt.Installation}
	n.Spec.Taints = slices.Clone(p.opt.Taints)
	n.Spec.ProviderID = p.opt.ProviderID
	n.Status = p.status(f, nil)
	if last == nil {
		return n
	}
	n.Labels = map[string]string{}
	for key, value := range last.Labels {
		if sayable(key) {
			n.Labels[key] = value
		}
	}
	maps.Copy(n.Labels, f.Labels)
	n.Spec.Unschedulable = last.Spec.Unschedulable
	// Taints that tell of conditions are the server's, which sets them anew.
	n.Spec.Taints = slices.DeleteFunc(slices.Clone(last.Spec.Taints), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, corev1.LabelNamespaceSuffixNode+"/")
	})
	return n
}

// sayable reports whether a node may set a label of its own Node when it makes it:
// of Kubernetes' own domains it may only what it knows best.
func sayable(label string) bool {
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
		corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable,
	}, label)
}

// InstallationAnnotation is the annotation that tells one installation of berth from
// another of the same node name.
const InstallationAnnotation = "berth.dev/installation"

// status is what the node says of itself. has is what the server has of it.
func (p *Registrar) status(f Facts, has *corev1.NodeStatus) corev1.NodeStatus {
	st := corev1.NodeStatus{
		Capacity: f.Capacity, Allocatable: advertised(f, has), Addresses: f.Addresses, NodeInfo: f.System, Images: f.Images,
		RuntimeHandlers: f.RuntimeHandlers, Features: f.Features,
	}
	st.DaemonEndpoints.KubeletEndpoint.Port = f.Port
	st.Conditions = p.conditions(f, has)
	return st
}

// advertised is what pods may have: what the node knows of, and all of the extended
// resources that an administrator has given the Node's capacity.
func advertised(f Facts, has *corev1.NodeStatus) corev1.ResourceList {
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

// conditions are the node's own; a condition that is as it was keeps its time.
func (p *Registrar) conditions(f Facts, has *corev1.NodeStatus) []corev1.NodeCondition {
	now := metav1.NewTime(p.opt.Now().Truncate(time.Second))
	choose := func(t corev1.NodeConditionType, is bool, yes, no, yesText, noText string) corev1.NodeCondition {
		c := corev1.NodeCondition{Type: t, Status: corev1.ConditionFalse, Reason: no, Message: noText, LastHeartbeatTime: now, LastTransitionTime: now}
		if is {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yes, yesText
		}
		return c
	}
	all := []corev1.NodeCondition{
		choose(corev1.NodeMemoryPressure, f.MemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
			"kubelet has insufficient memory available", "kubelet has sufficient memory available"),
		choose(corev1.NodeDiskPressure, f.DiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
			"kubelet has disk pressure", "kubelet has no disk pressure"),
		choose(corev1.NodePIDPressure, f.PIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
			"kubelet has insufficient PID available", "kubelet has sufficient PID available"),
		choose(corev1.NodeReady, f.NotReady == "", "KubeletReady", "KubeletNotReady", "kubelet is posting ready status", f.NotReady),
	}
	if n := f.Network; n != nil {
		all = append(all, choose(corev1.NodeNetworkUnavailable, n.Unavailable, n.Reason, n.Reason, n.Message, n.Message))
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

// sameStatus compares two statuses but for the time of their saying.
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

// agrees reports whether the server has the conditions that the node has said.
func agrees(said, has *corev1.NodeStatus) bool {
	for _, c := range said.Conditions {
		i := slices.IndexFunc(has.Conditions, func(h corev1.NodeCondition) bool { return h.Type == c.Type })
		if i < 0 || has.Conditions[i].Status != c.Status || has.Conditions[i].Reason != c.Reason {
			return false
		}
	}
	return true
}
