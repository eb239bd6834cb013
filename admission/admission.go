package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Node is what a node offers.
type Node struct {
	Name        string
	OS          string // empty: linux
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable corev1.ResourceList // with pods; what is not listed is not there

	// AllowUnlistedExtended lets pods in that request an extended resource which the
	// node does not list: on a node whose pods a scheduler places, such a
	// resource is accounted for elsewhere. Without it the pod waits for the
	// device.
	AllowUnlistedExtended bool
	// UnsafeSysctls are the namespaced sysctls beyond the safe ones that pods
	// may set: names, or prefixes that end in '*'.
	UnsafeSysctls []string
	// NoAppArmor says that the host enforces no AppArmor profiles.
	NoAppArmor bool
	// NoSupplementalGroupsPolicy says that the runtime does not know supplementalGroupsPolicy.
	NoSupplementalGroupsPolicy bool
	// PressureConditions are the conditions of pressure that the node is under, by name.
	PressureConditions []corev1.NodeConditionType
	// ShuttingDown says that the host goes down.
	ShuttingDown bool
	// LimitedSwap says that pods may have their part of the host's swap.
	LimitedSwap bool
	// Standalone says that no server is there: see podspec.Critical.
	Standalone bool
}

// Rejection is one reason why a pod does not fit.
type Rejection struct {
	Reason  string // CamelCase, as in the status of a rejected pod: OutOfcpu, NodeAffinity, …
	Message string // one sentence for the user
	// Recoverable: what is in the way may go by itself (another pod ends, a
	// device registers). False: this pod will never fit this node as it is.
	Recoverable bool

	// Of a resource that does not suffice; CPU in thousandths, all else in
	// units of the resource (bytes, pieces). Zero with other reasons.
	Resource                  corev1.ResourceName
	Requested, Used, Capacity int64
}

func (r Rejection) String() string { return r.Reason + ": " + r.Message }

// Check gives every reason why the pod does not fit the node beside what is
// used already, the weightiest first; none: it fits. The pod has its defaults
// and is not itself part of used.
func Check(node Node, used Used, pod *corev1.Pod) []Rejection {
	var out []Rejection
	for _, rule := range []func(Node, Used, *corev1.Pod) []Rejection{
		pressure, operatingSystem, sysctls, resources, affinity, nodeName, hostPorts, taints, appArmor, groupsPolicy, shutdown,
	} {
		out = append(out, rule(node, used, pod)...)
	}
	return out
}

// predicate is a refusal in the words of the kubelet's scheduler predicates.
func predicate(name, why string, recoverable bool) []Rejection {
	return []Rejection{{
		Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, why), Recoverable: recoverable,
	}}
}
