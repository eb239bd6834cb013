package criconfig

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Node has the facts about the host, its runtime and the agent's configuration that the translation
// needs. It is a value without secrets and may be shared.
type Node struct {
	Name        string
	Instance    string              // value of InstanceLabel; empty: no label
	Capacity    corev1.ResourceList // memory, in bytes, is the base of OOM scores
	Allocatable corev1.ResourceList // default for resourceFieldRef of an absent limit

	Standalone     bool       // there is no cluster: only pods that request its DNS explicitly get a warning
	ClusterDNS     []string   // addresses of the cluster's DNS service; empty: none
	ClusterDomain  string     // for example cluster.local; empty: no cluster search domains
	HostResolvConf ResolvConf // the host's resolv.conf; zero: none
	HostIPs        []string   // select the loopback address that replaces an absent resolv.conf of the host

	SeccompProfileRoot string // absolute directory of localhost seccomp profiles: <root-dir>/seccomp
	SeccompDefault     bool   // a container without a profile gets RuntimeDefault instead of Unconfined

	Handlers map[string]string          // CRI handler by RuntimeClass name
	Features map[string]HandlerFeatures // by CRI handler name; "" is the default handler

	NoImageVolumesReason string // why the runtime does not support image volumes; empty: it does
	NoCDIReason          string // why the runtime does not support CDI devices; empty: it does
	NoBandwidthReason    string // why the network does not limit the bandwidth of pods; empty: it does
	// SupplementalGroupsPolicy means that the runtime supports supplementalGroupsPolicy.
	SupplementalGroupsPolicy bool
	// UserIDs returns the host IDs allocated to the pod with this UID, the same on every call. Nil:
	// the node has none.
	UserIDs func(uid string) (IDRange, error)

	CgroupV2               bool          // set limits that only v2 supports
	CanLimitSwap           bool          // the kernel limits swap per cgroup
	SwapCapacity           int64         // bytes of the node's swap for Burstable pods (LimitedSwap, v2); 0: none
	MemoryThrottlingFactor float64       // memoryThrottlingFactor (v2); 0: no throttling
	MemoryReservation      bool          // memoryReservationPolicy TieredReservation (v2)
	PageSize               int64         // of the host, in bytes; 0: unknown, no throttling
	HugePageSizes          []string      // limited by the hugetlb controller, in its spelling: 2MB, 1GB
	CPUCFSQuotaDisabled    bool          // cpuCFSQuota is false: CPU limits are not enforced
	CPUCFSQuotaPeriod      time.Duration // cpuCFSQuotaPeriod; zero: 100 ms
	SingleProcessOOMKill   bool          // singleProcessOOMKill: the kernel kills one process, not the container (v2)
}

// describeHandler returns a description of a runtime handler for error messages.
func describeHandler(name string) string {
	if name == "" {
		return "the default runtime handler"
	}
	return fmt.Sprintf("runtime handler %q", name)
}

// HandlerFeatures are the features of a runtime handler.
type HandlerFeatures struct {
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// IDRange is a contiguous range of user and group IDs on the host.
type IDRange struct{ First, Count uint32 }

// RuntimeHandler returns the CRI handler of the pod's RuntimeClass. Empty: the runtime's default.
// The error for an unknown class is not permanent, because the class can be configured later.
func RuntimeHandler(node Node, pod *corev1.Pod) (string, error) {
	class := pod.Spec.RuntimeClassName
	if class == nil || *class == "" {
		return "", nil
	}
	handler, ok := node.Handlers[*class]
	if !ok {
		return "", missing(reasonSandbox, "spec.runtimeClassName: RuntimeClass %q not found", *class)
	}
	return handler, nil
}

// Reasons for a pod or a container that cannot be created.
const (
	reasonSandbox   = "FailedCreatePodSandBox"
	reasonContainer = "CreateContainerConfigError"
)

// invalid is a permanent error of this pod on this node.
func invalid(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Invalid, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// unsupported is an error of a runtime or node that lacks a feature that the pod needs.
func unsupported(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Unsupported, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// missing is an error of an object that may still appear.
func missing(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Other, Reason: reason, Err: fmt.Errorf(format, args...)}
}
