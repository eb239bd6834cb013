package criconfig

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/podspec"
)

const (
	minShares     = 2
	maxShares     = 262144
	sharesPerCPU  = 1024
	minQuota      = 1000 // µs, the kernel's minimum
	defaultPeriod = 100 * time.Millisecond
	milliPerCPU   = 1000
)

// Resources returns the limits of one container, for resizing a running one.
func Resources(node Node, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.LinuxContainerResources, error) {
	return containerResources(node, pod, c)
}

// containerResources returns the limits of one container.
func containerResources(node Node, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.LinuxContainerResources, error) {
	limits := effectiveLimits(pod, c)
	out := linuxResources(node, c.Resources.Requests, limits)
	out.OomScoreAdj = OOMScoreAdjust(node, pod, c)
	setSwap(node, pod, c, out)
	setMemoryQoS(node, pod, c, out)
	if node.CgroupV2 && !node.SingleProcessOOMKill {
		unified(out)["memory.oom.group"] = "1"
	}
	pages, err := hugepageLimits(node, limits)
	out.HugepageLimits = pages
	return out, err
}

// effectiveLimits returns the container's limits. Resources that it does not limit inherit the
// limits of the pod.
func effectiveLimits(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
	inherited := podspec.InheritedLimits(pod.Spec.Resources, c.Resources.Limits)
	if len(inherited) == 0 {
		return c.Resources.Limits
	}
	all := maps.Clone(c.Resources.Limits)
	if all == nil {
		return inherited
	}
	maps.Copy(all, inherited)
	return all
}

// linuxResources converts CPU and memory. An absent CPU request defaults to the limit. An explicit
// request of zero does not.
func linuxResources(node Node, requests, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	request, limit := requests.Cpu(), limits.Cpu()
	if _, named := requests[corev1.ResourceCPU]; !named {
		request = limit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          cpuShares(request.MilliValue()),
		MemoryLimitInBytes: max(limits.Memory().Value(), 0),
	}
	if milli := limit.MilliValue(); milli > 0 && !node.CPUCFSQuotaDisabled {
		out.CpuPeriod, out.CpuQuota = cpuQuota(milli, node.CPUCFSQuotaPeriod)
	}
	return out
}

// cpuShares converts a request in millicores to CPU shares of cgroup v1. The runtime converts them
// to a v2 weight.
func cpuShares(milli int64) int64 {
	if milli > maxShares*milliPerCPU/sharesPerCPU {
		return maxShares
	}
	return max(milli*sharesPerCPU/milliPerCPU, minShares)
}

// cpuQuota converts a limit in millicores to period and quota in µs.
func cpuQuota(milli int64, period time.Duration) (periodUS, quotaUS int64) {
	if period <= 0 {
		period = defaultPeriod
	}
	periodUS = period.Microseconds()
	if milli > math.MaxInt64/max(periodUS, 1) {
		return periodUS, math.MaxInt64 / milliPerCPU
	}
	return periodUS, max(milli*periodUS/milliPerCPU, minQuota)
}

func unified(out *runtimeapi.LinuxContainerResources) map[string]string {
	if out.Unified == nil {
		out.Unified = map[string]string{}
	}
	return out.Unified
}

// hugepageLimits returns a limit for each page size of the host: that of the spec, or zero.
func hugepageLimits(node Node, limits corev1.ResourceList) ([]*runtimeapi.HugepageLimit, error) {
	wanted := map[string]uint64{}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if !ok {
			continue
		}
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Value() <= 0 {
			return nil, invalid(reasonContainer, "resources.limits: %q has no page size", name)
		}
		q := limits[name]
		page := pageSize(size.Value())
		if !slices.Contains(node.HugePageSizes, page) {
			return nil, unsupported(reasonContainer, "resources.limits: the host has no huge pages of %s (%s)", page,
				name)
		}
		wanted[page] = uint64(max(q.Value(), 0))
	}
	var out []*runtimeapi.HugepageLimit
	for _, page := range node.HugePageSizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: page, Limit: wanted[page]})
	}
	return out, nil
}

// pageSize formats a number of bytes like the hugetlb controller.
func pageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for bytes%1024 == 0 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return fmt.Sprintf("%d%s", bytes, units[i])
}

// sandboxResources returns the resources of all containers of the pod together, without the
// overhead. Runtimes that need them before they create a sandbox use them, for example those with
// virtual machines. A resource is limited only if all containers limit it.
func sandboxResources(node Node, pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	bare := *pod
	bare.Spec.Overhead = nil
	limits := podspec.Limits(&bare)
	for name := range limits {
		if !podspec.Limited(&bare, name) {
			delete(limits, name)
		}
	}
	return linuxResources(node, podspec.Requests(&bare), limits)
}

// overhead returns the overhead of the pod's RuntimeClass.
func overhead(node Node, pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	return linuxResources(node, pod.Spec.Overhead, pod.Spec.Overhead)
}
