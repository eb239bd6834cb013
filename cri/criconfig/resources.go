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
	minQuota      = 1000 // µs: the kernel takes no less
	defaultPeriod = 100 * time.Millisecond
	milliPerCPU   = 1000
)

// Resources gives the limits of one container, for a running one to be resized to.
func Resources(node Node, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.LinuxContainerResources, error) {
	return containerResources(node, pod, c)
}

// containerResources gives the limits of one container.
func containerResources(node Node, pod *corev1.Pod, c *corev1.Container) (*runtimeapi.LinuxContainerResources, error) {
	most := limitsOf(pod, c)
	out := limits(node, c.Resources.Requests, most)
	out.OomScoreAdj = OOMScoreAdjust(node, pod, c)
	setSwap(node, pod, c, out)
	setMemoryQoS(node, pod, c, out)
	if node.CgroupV2 && !node.SingleProcessOOMKill {
		unified(out)["memory.oom.group"] = "1"
	}
	pages, err := hugepages(node, most)
	out.HugepageLimits = pages
	return out, err
}

// limitsOf is what the container may have: what it says itself, else what the pod as a
// whole may have.
func limitsOf(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
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

// limits translates CPU and memory. A request that is absent is the limit; one of
// nothing is just that.
func limits(node Node, requests, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	request, limit := requests.Cpu(), limits.Cpu()
	if _, named := requests[corev1.ResourceCPU]; !named {
		request = limit
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          shares(request.MilliValue()),
		MemoryLimitInBytes: max(limits.Memory().Value(), 0),
	}
	if milli := limit.MilliValue(); milli > 0 && !node.CPUCFSQuotaDisabled {
		out.CpuPeriod, out.CpuQuota = quota(milli, node.CPUCFSQuotaPeriod)
	}
	return out
}

// shares is the v1 CPU weight of a request in thousandths of a CPU; the runtime
// turns it into a v2 weight.
func shares(milli int64) int64 {
	if milli > maxShares*milliPerCPU/sharesPerCPU {
		return maxShares
	}
	return max(milli*sharesPerCPU/milliPerCPU, minShares)
}

// quota gives period and quota in µs of a limit in thousandths of a CPU.
func quota(milli int64, period time.Duration) (periodUS, quotaUS int64) {
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

// hugepages limits each page size of the host: to what the spec says, else to
// none at all.
func hugepages(node Node, limits corev1.ResourceList) ([]*runtimeapi.HugepageLimit, error) {
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
			return nil, unsupported(reasonContainer, "resources.limits: the host has no huge pages of %s (%s)", page, name)
		}
		wanted[page] = uint64(max(q.Value(), 0))
	}
	var out []*runtimeapi.HugepageLimit
	for _, page := range node.HugePageSizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: page, Limit: wanted[page]})
	}
	return out, nil
}

// pageSize writes a number of bytes as the hugetlb controller does.
func pageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for bytes%1024 == 0 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return fmt.Sprintf("%d%s", bytes, units[i])
}

// sandboxResources gives what all containers of the pod may use together,
// without the overhead. It is for runtimes that must know before they make a
// sandbox, as those with virtual machines. A resource that one container does not
// limit is not limited for the pod.
func sandboxResources(node Node, pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	bare := *pod
	bare.Spec.Overhead = nil
	most := podspec.Limits(&bare)
	for name := range most {
		if !podspec.Limited(&bare, name) {
			delete(most, name)
		}
	}
	return limits(node, podspec.Requests(&bare), most)
}

// overhead is what the pod's RuntimeClass says that its sandbox takes itself.
func overhead(node Node, pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	if len(pod.Spec.Overhead) == 0 {
		return nil
	}
	return limits(node, pod.Spec.Overhead, pod.Spec.Overhead)
}
