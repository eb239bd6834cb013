package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// Values of Options.Driver.
const (
	driverCgroupfs = "cgroupfs"
	driverSystemd  = "systemd"
)

// Options configures Cgroups.
type Options struct {
	Root         string        // parent of kubepods; "" or "/" is the root of the hierarchy
	Driver       string        // cgroupfs or systemd; "" is systemd if it is PID 1, else cgroupfs
	PodPidsLimit int64         // maximum number of processes per pod; 0 or less: no limit
	CPUQuota     bool          // whether CPU limits become CFS quotas
	CPUPeriod    time.Duration // of CFS quotas; 0: 100 ms
	// PodsLimit limits all pods together: cpu sets the weight of kubepods, memory and huge pages
	// its limits. Nil: unchanged.
	PodsLimit corev1.ResourceList
	// ReserveMemory protects the memory requests of pods: memory.min for Guaranteed pods,
	// memory.low for Burstable pods. Only on v2.
	ReserveMemory bool
	// MemoryThrottlingFactor sets memory.high of a pod with pod-level limits to this fraction of
	// the range from its request to its limit. 0: not set. Only on v2.
	MemoryThrottlingFactor float64
	// Owner decides which pods belong to berth. Nil: all.
	Owner Owner
}

// machine describes the cgroup setup of the host.
type machine struct {
	hierarchies []hierarchy
	v2          bool
	hugePages   []string // sizes that the kernel supports
	units       units    // nil: systemd is not PID 1
}

// Cgroups manages the cgroups of pods on this host. Methods may be called concurrently for
// different pods. Errors of methods with a context are *plan.Error.
type Cgroups struct {
	machine
	layout layout
	rules  rules
	owner  Owner                 // nil: all pods belong to berth
	limits *specs.LinuxResources // limits of all pods together; nil: none

	mu                sync.Mutex
	allPodsLimited    bool // this process has set the limits of all pods together
	requested         requested
	limited           map[types.UID]bool // pods whose limits this process has set
	writtenShares     uint64             // shares of the Burstable tier; 0: not written by this process
	memory            reserved
	writtenProtection reservation // as written for all pods and the Burstable tier
}

// New inspects the host and changes nothing. It returns an error if the host does not support the
// driver, if the root is invalid, or if the host has no cgroups.
func New(o Options) (*Cgroups, error) {
	m, err := detectMachine()
	if err != nil {
		return nil, err
	}
	return newCgroups(m, o)
}

func newCgroups(m machine, o Options) (*Cgroups, error) {
	if o.Driver == "" {
		o.Driver = driverCgroupfs
		if m.units != nil {
			o.Driver = driverSystemd
		}
	}
	switch {
	case o.Driver != driverCgroupfs && o.Driver != driverSystemd:
		return nil, fmt.Errorf("cgroup driver %q: must be %s or %s", o.Driver, driverCgroupfs, driverSystemd)
	case o.Driver == driverSystemd && m.units == nil:
		return nil, errors.New(
			"cgroup driver systemd: this host was not booted with systemd; use cgroupfs, also in the runtime's " +
				"configuration",
		)
	case o.CPUPeriod != 0 && (o.CPUPeriod < time.Millisecond || o.CPUPeriod > time.Second):
		return nil, fmt.Errorf("CPU period %s: must be 1ms to 1s", o.CPUPeriod)
	}
	l, err := newLayout(o.Root, o.Driver == driverSystemd)
	if err != nil {
		return nil, err
	}
	c := &Cgroups{
		machine: m, layout: l, owner: o.Owner,
		requested: requested{}, limited: map[types.UID]bool{}, memory: reserved{},
	}
	c.rules = rules{pids: o.PodPidsLimit, quota: o.CPUQuota, period: o.CPUPeriod}
	if m.v2 {
		c.rules.reserve, c.rules.factor, c.rules.page = o.ReserveMemory, o.MemoryThrottlingFactor,
			int64(os.Getpagesize())
	}
	if slices.ContainsFunc(m.hierarchies, func(h hierarchy) bool { return h.has("hugetlb") }) {
		c.rules.hugePages = m.hugePages
	}
	if o.PodsLimit != nil {
		c.limits = limitsOfAll(o.PodsLimit, c.rules)
	}
	return c, nil
}

func detectMachine() (machine, error) {
	const mount = "/sys/fs/cgroup"
	var m machine
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil {
		return m, fmt.Errorf("%s: %w", mount, err)
	}
	m.v2 = fs.Type == unix.CGROUP2_SUPER_MAGIC
	if m.v2 {
		m.hierarchies = []hierarchy{
			{mount: mount, unified: true, mkdir: mkdir, controllers: fields(mount + "/cgroup.controllers")},
		}
	} else {
		text, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return m, err
		}
		m.hierarchies = parseMounts(string(text))
	}
	if len(m.hierarchies) == 0 {
		return m, fmt.Errorf("%s: no cgroup hierarchy is mounted", mount)
	}
	dirs, _ := os.ReadDir("/sys/kernel/mm/hugepages") // missing if the kernel has none
	for _, d := range dirs {
		if size, ok := hugePageName(d.Name()); ok {
			m.hugePages = append(m.hugePages, size)
		}
	}
	if exists("/run/systemd/system") {
		m.units = &bus{}
	}
	return m, nil
}

// V2 reports whether the host uses only the unified hierarchy. A hybrid host is v1.
func (c *Cgroups) V2() bool { return c.v2 }

// Driver returns cgroupfs or systemd.
func (c *Cgroups) Driver() string {
	if c.layout.systemd {
		return driverSystemd
	}
	return driverCgroupfs
}

// HugePageSizes returns the sizes that can be limited, with the kernel's names 2MB and 1GB. There
// are none without the hugetlb controller.
func (c *Cgroups) HugePageSizes() []string { return slices.Clone(c.rules.hugePages) }

// SwapLimits reports whether the kernel can limit swap per cgroup. The root cgroup of v2 does not
// have the file, so any cgroup with the memory controller is checked. If there is none yet, the
// result is false.
func (c *Cgroups) SwapLimits() bool {
	for _, h := range c.hierarchies {
		if !h.has("memory") {
			continue
		}
		if !h.unified {
			return exists(filepath.Join(h.mount, "memory.memsw.limit_in_bytes"))
		}
		found, _ := filepath.Glob(filepath.Join(h.mount, "*", "memory.swap.max"))
		return len(found) > 0 || exists(filepath.Join(h.mount, c.layout.dir(c.layout.tier("")), "memory.swap.max"))
	}
	return false
}

// Parent returns the pod's cgroup in the format of CRI's cgroup_parent: a path for cgroupfs, the
// name of a slice for systemd.
func (c *Cgroups) Parent(pod *corev1.Pod) string { return c.layout.parent(c.names(pod)) }

// PodOf returns the UID of the pod whose cgroup contains a cgroup. It accepts a path, or with systemd
// also slice:prefix:name. ok is false for any other cgroup.
func (c *Cgroups) PodOf(cgroup string) (uid types.UID, ok bool) { return c.layout.podOf(cgroup) }

func (c *Cgroups) names(pod *corev1.Pod) []string {
	return c.layout.pod(tierOf(podspec.QOSClass(pod)), pod.UID)
}

// Exists reports whether the pod has a cgroup. If so, the pod's request counts for the shares of
// the Burstable tier, which restores the sum after a restart of the agent. Exists repairs a cgroup
// that lacks a hierarchy, and sets the limits of each pod once, because the agent may have been
// stopped while it created or removed the cgroup. If the repair fails, it returns false, and Ensure
// returns the error. It is false for the cgroup of a pod that does not belong to berth.
func (c *Cgroups) Exists(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if err := check(ctx, pod); err != nil {
		return false, failed(reasonMake, err)
	}
	if !c.ownsPod(pod.UID) {
		return false, nil
	}
	whole := len(c.find(c.names(pod))) == len(c.hierarchies)
	if !whole && !c.anywhere(pod.UID) {
		return false, nil
	}
	if !whole || !c.isLimited(pod.UID) {
		if err := errors.Join(c.limitAllPods(ctx), c.setLimits(ctx, c.names(pod), limitsOf(pod, c.rules))); err != nil {
			return false, failed(reasonMake, ctx.Err())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limited[pod.UID] = true
	c.requested.add(pod)
	c.memory.add(pod)
	if c.writtenShares == 0 {
		// The file has the value of the previous process. Until all pods are known again, a new sum
		// would be too small.
		return true, nil
	}
	return true, failed(reasonMake, errors.Join(c.writeShares(ctx), c.writeMemoryProtection(ctx)))
}

// anywhere reports whether any hierarchy has a cgroup of the pod, in any QoS tier.
func (c *Cgroups) anywhere(uid types.UID) bool {
	return slices.ContainsFunc(tiers(), func(tier string) bool { return len(c.find(c.layout.pod(tier, uid))) > 0 })
}

func (c *Cgroups) isLimited(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limited[uid]
}

// Ensure creates the pod's cgroup with its limits, or updates the limits. If that fails, the cgroup
// does not count as existing. A cgroup that berth did not create is an error.
func (c *Cgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	if err := check(ctx, pod); err != nil {
		return failed(reasonMake, err)
	}
	err := c.claim(pod.UID)
	if err == nil {
		err = c.limitAllPods(ctx)
	}
	if err == nil {
		err = c.checkMemoryFits(pod)
	}
	if err == nil {
		err = c.setLimits(ctx, c.names(pod), limitsOf(pod, c.rules))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.limited, pod.UID)
		return failed(reasonMake, err)
	}
	c.limited[pod.UID] = true
	c.requested.add(pod)
	c.memory.add(pod)
	err = errors.Join(c.writeShares(ctx), c.writeMemoryProtection(ctx))
	if err == nil && podspec.QOSClass(pod) == corev1.PodQOSBestEffort && !c.shared() {
		shares := uint64(minShares)
		err = c.setTier(ctx, c.layout.tier(besteffort), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	}
	return failed(reasonMake, err)
}

// checkMemoryFits rejects a memory limit below the current usage, because the kernel would kill
// processes.
func (c *Cgroups) checkMemoryFits(pod *corev1.Pod) error {
	limits := limitsOf(pod, c.rules).Memory
	if limits == nil || limits.Limit == nil || *limits.Limit <= 0 {
		return nil
	}
	dir, there := c.podDir(pod.UID)
	if !there {
		return nil
	}
	want := uint64(*limits.Limit)
	if now := c.memoryLimit(dir); now > 0 && want >= now {
		return nil
	}
	if used := c.read(dir).WorkingSet; used >= want {
		return fmt.Errorf("attempting to set pod memory limits (%d) below current usage (%d)", want, used)
	}
	return nil
}

// Remove kills the remaining processes in the pod's cgroup and removes it, in any tier, because
// only the UID of an orphaned pod may be known. It returns an error of kind Timeout after 10
// seconds and can be repeated. The cgroup of a pod that does not belong to berth is not changed.
func (c *Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	if err := check(ctx, pod); err != nil {
		return failed(reasonRemove, err)
	}
	if !c.ownsPod(pod.UID) {
		return nil
	}
	var groups []group
	for _, tier := range tiers() {
		names := c.layout.pod(tier, pod.UID)
		found := c.find(names)
		if len(found) > 0 && c.layout.systemd {
			if err := c.units.stop(ctx, slice(names)); err != nil {
				return failed(reasonRemove, err)
			}
		}
		groups = append(groups, found...)
	}
	if err := killAndRemove(ctx, groups); err != nil {
		return failed(reasonRemove, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requested, pod.UID)
	delete(c.limited, pod.UID)
	delete(c.memory, pod.UID)
	return failed(reasonRemove, errors.Join(c.writeShares(ctx), c.writeMemoryProtection(ctx)))
}

// RemoveRoot removes the cgroups that all pods share, unless they contain pods that do not belong to
// berth. It is an error if other pods are left.
func (c *Cgroups) RemoveRoot(ctx context.Context) error {
	left, foreign, err := c.pods(ctx)
	switch {
	case err != nil:
		return err
	case len(left) > 0:
		return failed(reasonRemove, fmt.Errorf("%d pods still have a cgroup", len(left)))
	case len(foreign) > 0:
		return nil
	}
	var errs []error
	for _, tier := range slices.Backward(tiers()) { // children first
		for _, g := range c.find(c.layout.tier(tier)) {
			if err := g.remove(); err != nil && !isGone(err) {
				errs = append(errs, err)
			}
		}
	}
	return failed(reasonRemove, errors.Join(errs...))
}

// find returns a cgroup in all hierarchies that have it.
func (c *Cgroups) find(names []string) []group {
	var out []group
	for _, h := range c.hierarchies {
		if dir := filepath.Join(h.mount, c.layout.dir(names)); exists(dir) {
			out = append(out, group{dir: dir, unified: h.unified})
		}
	}
	return out
}

// counter reads the value of "key number" in a file. It returns 0 if the file does not exist.
func counter(file, key string) (uint64, error) {
	text, err := os.ReadFile(file)
	if isGone(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s", file, key)
}

// check rejects a UID that could name another cgroup.
func check(ctx context.Context, pod *corev1.Pod) error {
	if !plainName(string(pod.UID)) {
		return invalid("metadata.uid: %q cannot name a cgroup", pod.UID)
	}
	return ctx.Err()
}
