package cgroups

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// The drivers of Options.Driver.
const (
	driverCgroupfs = "cgroupfs"
	driverSystemd  = "systemd"
)

// Options says where pods' cgroups lie and how they are made.
type Options struct {
	Root         string        // cgroup below which kubepods lies; "" or "/" is the hierarchy's root
	Driver       string        // cgroupfs or systemd; "" is systemd where it is PID 1, else cgroupfs
	PodPidsLimit int64         // most processes of one pod; 0 or less: no limit
	CPUQuota     bool          // whether CPU limits become CFS quotas
	CPUPeriod    time.Duration // of CFS quotas; 0: 100 ms
	// PodsLimit is what all pods together may use: cpu gives the weight of their
	// cgroup, memory and huge pages its limits. Nil: it is left as it is.
	PodsLimit corev1.ResourceList
	// ReserveMemory has the kernel leave pods what they request of memory: Guaranteed
	// ones always (memory.min), Burstable ones if it can (memory.low). Only on v2.
	ReserveMemory bool
	// MemoryThrottlingFactor is how far of the way from its request to its limit a pod with a
	// limit of its own gets before the kernel slows it down (memory.high). 0: it does
	// not. Only on v2.
	MemoryThrottlingFactor float64
}

// machine is what New must know of the host.
type machine struct {
	hierarchies []hierarchy
	v2          bool
	hugePages   []string // sizes the kernel has
	units       units    // nil: systemd is not PID 1
}

// Cgroups is the pods' cgroups on this host. Its methods may be called at the
// same time for different pods. Errors of the methods that take a context are
// *plan.Error.
type Cgroups struct {
	machine
	layout layout
	rules  rules
	pods   *specs.LinuxResources // limits of all pods together; nil: none

	mu        sync.Mutex
	bounded   bool // this process has set the limits of all pods together
	requested requested
	limited   map[types.UID]bool // pods whose limits this process has set
	written   uint64             // the Burstable tier's shares; 0: not by this process
	memory    reserved
	kept      reservation // as it was written for all pods and the Burstable tier
}

// New looks at the host and changes nothing on it. A driver that the host
// cannot serve, a bad root and a host without cgroups are errors.
func New(o Options) (*Cgroups, error) {
	m, err := thisMachine()
	if err != nil {
		return nil, err
	}
	return newOn(m, o)
}

func newOn(m machine, o Options) (*Cgroups, error) {
	if o.Driver == "" {
		o.Driver = driverCgroupfs
		if m.units != nil {
			o.Driver = driverSystemd
		}
	}
	switch {
	case o.Driver != driverCgroupfs && o.Driver != driverSystemd:
		return nil, fmt.Errorf("cgroup driver %q: want %s or %s", o.Driver, driverCgroupfs, driverSystemd)
	case o.Driver == driverSystemd && m.units == nil:
		return nil, errors.New("cgroup driver systemd: this host was not booted with systemd; use cgroupfs, in the runtime's configuration too")
	case o.CPUPeriod != 0 && (o.CPUPeriod < time.Millisecond || o.CPUPeriod > time.Second):
		return nil, fmt.Errorf("CPU period %s: want 1ms to 1s", o.CPUPeriod)
	}
	l, err := newLayout(o.Root, o.Driver == driverSystemd)
	if err != nil {
		return nil, err
	}
	c := &Cgroups{machine: m, layout: l, requested: requested{}, limited: map[types.UID]bool{}, memory: reserved{}}
	c.rules = rules{pids: o.PodPidsLimit, quota: o.CPUQuota, period: o.CPUPeriod}
	if m.v2 {
		c.rules.reserve, c.rules.factor, c.rules.page = o.ReserveMemory, o.MemoryThrottlingFactor, int64(os.Getpagesize())
	}
	if slices.ContainsFunc(m.hierarchies, func(h hierarchy) bool { return h.has("hugetlb") }) {
		c.rules.hugePages = m.hugePages
	}
	if o.PodsLimit != nil {
		c.pods = limitsOfAll(o.PodsLimit, c.rules)
	}
	return c, nil
}

func thisMachine() (machine, error) {
	const mount = "/sys/fs/cgroup"
	var m machine
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil {
		return m, fmt.Errorf("%s: %w", mount, err)
	}
	m.v2 = fs.Type == unix.CGROUP2_SUPER_MAGIC
	if m.v2 {
		m.hierarchies = []hierarchy{{mount: mount, unified: true, mkdir: mkdir, controllers: fields(mount + "/cgroup.controllers")}}
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
	dirs, _ := os.ReadDir("/sys/kernel/mm/hugepages") // absent: the kernel has none
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

// V2 reports whether the host has the unified hierarchy alone; a hybrid host is
// v1.
func (c *Cgroups) V2() bool { return c.v2 }

// Driver is cgroupfs or systemd.
func (c *Cgroups) Driver() string {
	if c.layout.systemd {
		return driverSystemd
	}
	return driverCgroupfs
}

// HugePageSizes lists the sizes that can be limited, as the kernel names them:
// 2MB, 1GB. None without the hugetlb controller.
func (c *Cgroups) HugePageSizes() []string { return slices.Clone(c.rules.hugePages) }

// SwapLimits reports whether the kernel can limit swap per cgroup. The root of
// cgroup v2 has no such file, so there any cgroup with the memory controller
// tells; before there is one the answer is no.
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

// Parent is the pod's cgroup as CRI wants its cgroup_parent: a path for
// cgroupfs, the name of a slice for systemd.
func (c *Cgroups) Parent(pod *corev1.Pod) string { return c.layout.parent(c.names(pod)) }

// Owns reports whether a cgroup is a pod's or lies in one: a path, or with
// systemd slice:prefix:name too.
func (c *Cgroups) Owns(cgroup string) bool { return c.layout.owns(cgroup) }

func (c *Cgroups) names(pod *corev1.Pod) []string {
	return c.layout.pod(tierOf(podspec.QOSClass(pod)), pod.UID)
}

// Exists reports whether the pod has a cgroup. If so, its request counts for the
// Burstable tier's share: that is how pods are known again after a restart of
// the agent. One that lacks a hierarchy is made whole, and the first time its
// limits are set again, because the agent may have ended half-way through
// making or removing it; where that cannot be done the answer is no, and Ensure
// says why.
func (c *Cgroups) Exists(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if err := check(ctx, pod); err != nil {
		return false, failed(reasonMake, err)
	}
	whole := len(c.find(c.names(pod))) == len(c.hierarchies)
	if !whole && !c.anywhere(pod.UID) {
		return false, nil
	}
	if !whole || !c.isLimited(pod.UID) {
		if err := errors.Join(c.bound(ctx), c.set(ctx, c.names(pod), limitsOf(pod, c.rules))); err != nil {
			return false, failed(reasonMake, ctx.Err())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limited[pod.UID] = true
	c.requested.add(pod)
	c.memory.add(pod)
	if c.written == 0 {
		// The file still has what was right before this process. As long as
		// not all pods are known again, a new sum would be too small.
		return true, nil
	}
	return true, failed(reasonMake, errors.Join(c.share(ctx), c.keep(ctx)))
}

// anywhere reports whether any hierarchy has a cgroup of the pod, whatever its
// quality of service.
func (c *Cgroups) anywhere(uid types.UID) bool {
	return slices.ContainsFunc(tiers(), func(tier string) bool { return len(c.find(c.layout.pod(tier, uid))) > 0 })
}

func (c *Cgroups) isLimited(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limited[uid]
}

// Ensure makes the pod's cgroup with its limits, or sets them anew. A cgroup
// that did not get them does not count as existing.
func (c *Cgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	if err := check(ctx, pod); err != nil {
		return failed(reasonMake, err)
	}
	err := c.bound(ctx)
	if err == nil {
		err = c.fits(pod)
	}
	if err == nil {
		err = c.set(ctx, c.names(pod), limitsOf(pod, c.rules))
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
	err = errors.Join(c.share(ctx), c.keep(ctx))
	if err == nil && podspec.QOSClass(pod) == corev1.PodQOSBestEffort {
		shares := uint64(minShares)
		err = c.tune(ctx, c.layout.tier(besteffort), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	}
	return failed(reasonMake, err)
}

// fits refuses to limit the memory of a pod to less than it uses: the kernel
// would kill for it.
func (c *Cgroups) fits(pod *corev1.Pod) error {
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

// bound sets the limits of all pods together, once in the life of this process.
func (c *Cgroups) bound(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods == nil || c.bounded {
		return nil
	}
	if err := c.set(ctx, c.layout.tier(""), c.pods); err != nil {
		return fmt.Errorf("limit all pods to what is allocatable: %w", err)
	}
	c.bounded = true
	return nil
}

// share writes the Burstable tier's share if it has changed. c.mu is held.
func (c *Cgroups) share(ctx context.Context) error {
	shares := c.requested.shares()
	if shares == c.written || len(c.requested) == 0 && c.written == 0 {
		return nil
	}
	err := c.tune(ctx, c.layout.tier(burstable), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}})
	if err == nil {
		c.written = shares
	}
	return err
}

// keep has the kernel leave the pods' memory to all pods together and to the Burstable
// tier, if that has changed: what a cgroup should be left counts only as far as the
// cgroups above it are left as much. c.mu is held.
func (c *Cgroups) keep(ctx context.Context) error {
	now := c.memory.sum()
	if !c.rules.reserve || now == c.kept {
		return nil
	}
	shares := c.requested.shares()
	err := c.tune(ctx, c.layout.tier(burstable), &specs.LinuxResources{
		CPU: &specs.LinuxCPU{Shares: &shares}, Unified: map[string]string{memoryLow: strconv.FormatInt(now.burstable, 10)},
	})
	if err == nil && c.pods != nil {
		all := *c.pods
		all.Unified = map[string]string{
			memoryMin: strconv.FormatInt(now.guaranteed, 10), memoryLow: strconv.FormatInt(now.guaranteed+now.burstable, 10),
		}
		err = c.tune(ctx, c.layout.tier(""), &all)
	}
	if err != nil {
		return fmt.Errorf("keep the memory that pods request: %w", err)
	}
	c.kept = now
	return nil
}

// tune sets a tier's CPU share. With systemd the slice gets it as a property,
// or a reload would put it back.
func (c *Cgroups) tune(ctx context.Context, names []string, share *specs.LinuxResources) error {
	dir := c.layout.dir(names)
	i := slices.IndexFunc(c.hierarchies, func(h hierarchy) bool { return h.has("cpu") })
	if i < 0 || !exists(filepath.Join(c.hierarchies[i].mount, dir)) {
		return nil // the tier has never had a pod
	}
	if err := c.unit(ctx, names, share); err != nil {
		return err
	}
	return c.hierarchies[i].apply(dir, c.settings(share))
}

// unit makes the slice of a cgroup, or changes it, where systemd is the driver.
func (c *Cgroups) unit(ctx context.Context, names []string, limits *specs.LinuxResources) error {
	if !c.layout.systemd {
		return nil
	}
	return c.units.start(ctx, slice(names), properties(c.v2, limits))
}

// settings is what limits look like in the files of this host's cgroups.
func (c *Cgroups) settings(limits *specs.LinuxResources) []setting {
	if c.v2 {
		return settingsV2(limits)
	}
	return settingsV1(limits)
}

// set makes a cgroup where it is missing and gives it limits.
func (c *Cgroups) set(ctx context.Context, names []string, limits *specs.LinuxResources) error {
	if err := c.unit(ctx, names, limits); err != nil {
		return err
	}
	settings := c.settings(limits)
	dir := c.layout.dir(names)
	for _, h := range c.hierarchies {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := h.create(dir); err != nil {
			return err
		}
		if err := h.apply(dir, settings); err != nil {
			return err
		}
	}
	return nil
}

// Remove kills what is left in the pod's cgroup and removes it, in whichever
// tier it lies: of an orphan only the UID may be known. It gives up after 10
// seconds with kind Timeout; what was begun can be repeated.
func (c *Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	if err := check(ctx, pod); err != nil {
		return failed(reasonRemove, err)
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
	if err := sweep(ctx, groups); err != nil {
		return failed(reasonRemove, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.requested, pod.UID)
	delete(c.limited, pod.UID)
	delete(c.memory, pod.UID)
	return failed(reasonRemove, errors.Join(c.share(ctx), c.keep(ctx)))
}

// RemoveRoot removes the cgroups that all pods share, when no pod is left: for a host
// that berth leaves.
func (c *Cgroups) RemoveRoot(ctx context.Context) error {
	left, err := c.Pods(ctx)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return failed(reasonRemove, fmt.Errorf("%d pods are left", len(left)))
	}
	var errs []error
	for _, tier := range slices.Backward(tiers()) { // what is inside first
		for _, g := range c.find(c.layout.tier(tier)) {
			if err := g.remove(); err != nil && !gone(err) {
				errs = append(errs, err)
			}
		}
	}
	return failed(reasonRemove, errors.Join(errs...))
}

// find gives a cgroup in the hierarchies that have it.
func (c *Cgroups) find(names []string) []group {
	var out []group
	for _, h := range c.hierarchies {
		if dir := filepath.Join(h.mount, c.layout.dir(names)); exists(dir) {
			out = append(out, group{dir: dir, unified: h.unified})
		}
	}
	return out
}

// Pods lists the pods that have a cgroup in any hierarchy, sorted.
func (c *Cgroups) Pods(ctx context.Context) ([]types.UID, error) {
	uids := map[types.UID]bool{}
	for _, h := range c.hierarchies {
		for _, tier := range tiers() {
			if err := ctx.Err(); err != nil {
				return nil, failed(reasonRemove, err)
			}
			entries, err := os.ReadDir(filepath.Join(h.mount, c.layout.dir(c.layout.tier(tier))))
			if err != nil && !gone(err) {
				return nil, failed(reasonRemove, err)
			}
			for _, entry := range entries {
				if uid, ok := c.layout.uid(tier, entry.Name()); ok && entry.IsDir() {
					uids[uid] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(uids)), nil
}

// counter reads one line "key number" of a file; 0 if it went away meanwhile.
func counter(file, key string) (uint64, error) {
	text, err := os.ReadFile(file)
	if gone(err) {
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

// check refuses a UID that could name something else than a pod's cgroup.
func check(ctx context.Context, pod *corev1.Pod) error {
	if !plainName(string(pod.UID)) {
		return invalid("metadata.uid: %q cannot name a cgroup", pod.UID)
	}
	return ctx.Err()
}
