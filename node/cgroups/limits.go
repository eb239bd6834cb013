package cgroups

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

const (
	minShares, maxShares = 2, 262144
	minQuota             = 1000 // microseconds; the kernel's minimum
	defaultPeriod        = 100 * time.Millisecond
)

// rules are the limits of the node's configuration.
type rules struct {
	pids      int64
	quota     bool
	period    time.Duration
	hugePages []string // sizes that can be limited
	reserve   bool     // protect memory requests (v2)
	factor    float64  // see Options.MemoryThrottlingFactor (v2)
	page      int64    // page size of the host in bytes
}

// limitsOf returns a pod's limits. CPU shares are always set. Other nil fields are unlimited.
func limitsOf(pod *corev1.Pod, r rules) *specs.LinuxResources {
	requests, limits := podspec.Requests(pod), podspec.Limits(pod)
	shares := sharesOf(requests.Cpu().MilliValue())
	if podspec.QOSClass(pod) == corev1.PodQOSBestEffort {
		shares = minShares
	}
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}}
	if cpu := limits.Cpu().MilliValue(); r.quota && cpu > 0 && podspec.Limited(pod, corev1.ResourceCPU) {
		quota, period := quotaOf(cpu, r.period)
		out.CPU.Quota, out.CPU.Period = &quota, &period
	}
	if memory := limits.Memory().Value(); memory > 0 && podspec.Limited(pod, corev1.ResourceMemory) {
		out.Memory = &specs.LinuxMemory{Limit: &memory}
	}
	if r.pids > 0 {
		out.Pids = &specs.LinuxPids{Limit: &r.pids}
	}
	out.HugepageLimits = hugePages(limits, r.hugePages)
	out.Unified = memoryOf(pod, r)
	return out
}

// memoryOf returns the memory protection and memory.high of a pod. memory.high is set only with
// pod-level limits. Otherwise it is set for each container.
func memoryOf(pod *corev1.Pod, r rules) map[string]string {
	out := map[string]string{}
	requests := podspec.Requests(pod)
	request := requests.Memory().Value()
	qos := podspec.QOSClass(pod)
	if r.reserve && request > 0 {
		switch qos {
		case corev1.PodQOSGuaranteed:
			out[memoryMin] = strconv.FormatInt(request, 10)
		case corev1.PodQOSBurstable:
			out[memoryLow] = strconv.FormatInt(request, 10)
		case corev1.PodQOSBestEffort:
		}
	}
	if pod.Spec.Resources == nil || r.factor <= 0 || qos == corev1.PodQOSGuaranteed {
		return out
	}
	if limit := pod.Spec.Resources.Limits.Memory().Value(); limit > request {
		high := math.Floor((float64(request) + r.factor*float64(limit-request)) / float64(r.page))
		if high := int64(high) * r.page; high > request {
			out[memoryHigh] = strconv.FormatInt(high, 10)
		}
	}
	return out
}

// cgroup v2 files with a systemd property.
const (
	memoryMin  = "memory.min"
	memoryLow  = "memory.low"
	memoryHigh = "memory.high"
)

// limitsOfAll returns the limits of all pods together. Pods may use idle CPUs, so they get shares
// and no quota.
func limitsOfAll(list corev1.ResourceList, r rules) *specs.LinuxResources {
	shares := sharesOf(list.Cpu().MilliValue())
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, HugepageLimits: hugePages(list, r.hugePages)}
	if memory := list.Memory().Value(); memory > 0 {
		out.Memory = &specs.LinuxMemory{Limit: &memory}
	}
	if pids, limited := list[PIDs]; limited {
		n := pids.Value()
		out.Pids = &specs.LinuxPids{Limit: &n}
	}
	return out
}

// PIDs is the resource name of the limit of processes and threads.
const PIDs corev1.ResourceName = "pid"

// hugePages limits every supported size, to 0 if it is not requested.
func hugePages(limits corev1.ResourceList, sizes []string) []specs.LinuxHugepageLimit {
	requested := map[string]uint64{}
	for name, q := range limits {
		text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
		if size, known := hugePageSize(text); ok && known {
			requested[size] += uint64(max(q.Value(), 0))
		}
	}
	var out []specs.LinuxHugepageLimit
	for _, size := range slices.Sorted(slices.Values(sizes)) {
		out = append(out, specs.LinuxHugepageLimit{Pagesize: size, Limit: requested[size]})
	}
	return out
}

// hugePageSize converts the size of a resource name (2Mi) to the kernel's format (2MB).
func hugePageSize(text string) (string, bool) {
	number, found := strings.CutSuffix(text, "i")
	if !found || len(number) < 2 || !strings.ContainsRune("KMG", rune(number[len(number)-1])) {
		return "", false
	}
	if _, err := strconv.ParseUint(number[:len(number)-1], 10, 64); err != nil {
		return "", false
	}
	return number + "B", true
}

// hugePageName converts a directory of /sys/kernel/mm/hugepages (hugepages-2048kB) to the size in
// cgroup file names (2MB).
func hugePageName(dir string) (string, bool) {
	text, prefixed := strings.CutPrefix(dir, "hugepages-")
	text, suffixed := strings.CutSuffix(text, "kB")
	size, err := strconv.ParseUint(text, 10, 64)
	if !prefixed || !suffixed || err != nil || size == 0 {
		return "", false
	}
	unit := "KB"
	for _, next := range []string{"MB", "GB"} {
		if size%1024 != 0 {
			break
		}
		size, unit = size/1024, next
	}
	return strconv.FormatUint(size, 10) + unit, true
}

// sharesOf converts a CPU request to shares.
func sharesOf(milliCPU int64) uint64 {
	milliCPU = min(max(milliCPU, 0), maxShares*1000/1024) // prevents overflow
	return uint64(min(max(milliCPU*1024/1000, minShares), maxShares))
}

// weightOf converts shares to a cgroup v2 weight. For the formula see the package documentation.
func weightOf(shares uint64) uint64 {
	switch {
	case shares <= minShares:
		return 1
	case shares >= maxShares:
		return 10000
	}
	l := math.Log2(float64(shares))
	exponent := (l*l+125*l)/612 - 7.0/34.0
	// The exponent of 1024 shares is 2, apart from rounding.
	return uint64(math.Ceil(math.Pow(10, exponent) - 1e-9))
}

// quotaOf converts a CPU limit to a CFS quota and period in microseconds.
func quotaOf(milliCPU int64, period time.Duration) (quota int64, micros uint64) {
	if period <= 0 {
		period = defaultPeriod
	}
	us := period.Microseconds()
	milliCPU = min(milliCPU, math.MaxInt64/max(us, 1))
	return max(milliCPU*us/1000, minQuota), uint64(us)
}
