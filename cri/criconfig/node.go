package criconfig

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// Node is what translation must know of the host, its runtime and the agent's
// configuration. It is a value without secrets and may be shared.
type Node struct {
	Name        string
	Capacity    corev1.ResourceList // memory, in bytes, is what OOM scores are relative to
	Allocatable corev1.ResourceList // what resourceFieldRef of an absent limit falls back to

	Standalone     bool       // there is no cluster: a pod that does not ask for its DNS misses nothing
	ClusterDNS     []string   // addresses of the cluster's DNS service; empty: there is none
	ClusterDomain  string     // cluster.local; empty: no cluster search domains
	HostResolvConf ResolvConf // of the host's resolv.conf; zero: it has none
	HostIPs        []string   // tell which loopback stands for a host's resolv.conf that there is none of

	SeccompProfileRoot string // absolute directory of localhost seccomp profiles: <root-dir>/seccomp
	SeccompDefault     bool   // a container without a profile gets RuntimeDefault instead of Unconfined

	Handlers map[string]string          // CRI handler by RuntimeClass name
	Features map[string]HandlerFeatures // by CRI handler name; "" is the default handler

	NoImageVolumesReason string // why the runtime cannot mount images as volumes; empty: it can
	NoCDIReason          string // why the runtime cannot give devices by CDI; empty: it can
	NoBandwidthReason    string // why the network does not limit pods' bandwidth; empty: it does
	// SupplementalGroupsPolicy says that the runtime knows supplementalGroupsPolicy.
	SupplementalGroupsPolicy bool
	// UserIDs gives the host IDs that are allotted to the pod with this UID, the
	// same ones each time. Nil: the node has none to give.
	UserIDs func(uid string) (IDRange, error)

	CgroupV2               bool          // limits that only v2 knows are sent
	CanLimitSwap           bool          // the kernel can limit swap per cgroup: containers get none beyond their part of Swap
	SwapCapacity           int64         // bytes of swap that Burstable pods have a part of, of all that the node has (LimitedSwap, v2); 0: none
	MemoryThrottlingFactor float64       // memoryThrottlingFactor (v2); 0: nobody is slowed down
	MemoryReservation      bool          // memoryReservationPolicy TieredReservation (v2)
	PageSize               int64         // of the host, in bytes; 0: not known, and nobody is slowed down
	HugePageSizes          []string      // that the hugetlb controller limits, as it names them: 2MB, 1GB
	CPUCFSQuotaDisabled    bool          // cpuCFSQuota is off: CPU limits are not enforced
	CPUCFSQuotaPeriod      time.Duration // cpuCFSQuotaPeriod; zero: 100 ms
	SingleProcessOOMKill   bool          // singleProcessOOMKill: the kernel kills one process, not the container (v2)
}

// handlerText is how sentences name a runtime handler.
func handlerText(name string) string {
	if name == "" {
		return "the default runtime handler"
	}
	return fmt.Sprintf("runtime handler %q", name)
}

// HandlerFeatures is what a runtime handler says that it can do.
type HandlerFeatures struct {
	RecursiveReadOnlyMounts bool
	UserNamespaces          bool
}

// IDRange is a run of user and group IDs on the host.
type IDRange struct{ First, Count uint32 }

// RuntimeHandler returns the CRI handler of the pod's RuntimeClass; empty is the
// runtime's default. An unknown class is an error that may pass: it can be
// configured later.
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

// The reasons users know for a pod or a container that cannot be made.
const (
	reasonSandbox   = "FailedCreatePodSandBox"
	reasonContainer = "CreateContainerConfigError"
)

// invalid is an error that this pod will always meet on this node.
func invalid(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Invalid, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// unsupported is an error of a runtime or node that lacks what the pod asks for.
func unsupported(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Unsupported, Reason: reason, Err: fmt.Errorf(format, args...)}
}

// missing is an error of an object that may still appear.
func missing(reason, format string, args ...any) error {
	return &plan.Error{Kind: plan.Other, Reason: reason, Err: fmt.Errorf(format, args...)}
}
