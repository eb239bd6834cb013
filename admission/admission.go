package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Node describes a node to Check.
type Node struct {
	Name        string
	OS          string // empty: linux
	Labels      map[string]string
	Taints      []corev1.Taint
	Allocatable corev1.ResourceList // includes pods; resources not listed are not available

	// AllowUnlistedExtended admits pods that request an extended resource that the node does not
	// list. On a node whose pods are placed by a scheduler, such a resource is accounted for
	// elsewhere. Otherwise the pod waits for the device.
	AllowUnlistedExtended bool
	// UnsafeSysctls are the namespaced sysctls beyond the safe ones that pods
	// may set: names, or prefixes that end in '*'.
	UnsafeSysctls []string
	// NoAppArmor is set if the host does not enforce AppArmor profiles.
	NoAppArmor bool
	// NoSupplementalGroupsPolicy is set if the runtime does not support supplementalGroupsPolicy.
	NoSupplementalGroupsPolicy bool
	// UnsupportedFeatures are the pod features that the node does not support. Nil: none is known to
	// be unsupported.
	UnsupportedFeatures []podspec.Feature
	// PressureConditions are the pressure conditions of the node.
	PressureConditions []corev1.NodeConditionType
	// ShuttingDown is set during a graceful node shutdown.
	ShuttingDown bool
	// LimitedSwap is set if pods may use swap (LimitedSwap).
	LimitedSwap bool
	// Standalone is set on a node without an API server, see podspec.IsCritical.
	Standalone bool
}

// Rejection is one reason why a pod does not fit.
type Rejection struct {
	Reason  string // CamelCase, as in the status of a rejected pod: OutOfcpu, NodeAffinity, …
	Message string // for users
	// Recoverable is set if the pod may fit later: after another pod has terminated or a device
	// plugin has registered. Otherwise this pod will never fit this node.
	Recoverable bool

	// Set if a resource is insufficient: CPU in millicores, other resources in their unit (bytes,
	// count). Zero for other reasons.
	Resource                  corev1.ResourceName
	Requested, Used, Capacity int64
}

func (r Rejection) String() string { return r.Reason + ": " + r.Message }

// Check returns every reason why the pod does not fit the node, in order of precedence. An empty
// result means that it fits. The pod must have its defaults set and must not be part of used.
func Check(node Node, used Used, pod *corev1.Pod) []Rejection {
	var out []Rejection
	for _, rule := range []func(Node, Used, *corev1.Pod) []Rejection{
		pressure, operatingSystem, sysctls, resources, affinity, nodeName, hostPorts, taints, appArmor,
		groupsPolicy, podFeatures, shutdown,
	} {
		out = append(out, rule(node, used, pod)...)
	}
	return out
}

// predicate returns a rejection in the form of the kubelet's scheduler predicates.
func predicate(name, why string, recoverable bool) []Rejection {
	return []Rejection{{
		Reason: name, Message: fmt.Sprintf("Predicate %s failed: %s", name, why), Recoverable: recoverable,
	}}
}
