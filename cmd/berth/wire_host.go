package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/cni"
	"berth/cni/networks"
	"berth/cri/criconfig"
	"berth/internal/nodeconfig"
	"berth/internal/userids"
	"berth/node"
	"berth/node/cgroups"
	"berth/volumes"
)

// host is this machine as the agent's stages want it.
type host struct {
	b           *berth
	ips         []string
	addrs       []netip.Addr // the same
	labels      map[string]string
	capacity    corev1.ResourceList
	allocatable corev1.ResourceList
	volumes     *volumes.Volumes
	cgroups     *cgroups.Cgroups
	network     *cni.Network
	networks    *networks.Networks // beside the runtime's
	names       names
	users       *userids.Allocator
	noUsers     error       // why no pod can have users of its own
	ranged      atomic.Bool // the server has given the node its pod ranges
	guessed     atomic.Bool // the cgroup driver: the runtime has not been asked yet
}

func newHost(ctx context.Context, b *berth) (*host, error) {
	c := b.config
	h := &host{b: b}
	if err := h.addresses(); err != nil {
		return nil, err
	}
	h.labels = map[string]string{
		"kubernetes.io/hostname": c.NodeName, "kubernetes.io/os": "linux", "kubernetes.io/arch": goruntime.GOARCH,
	}
	maps.Copy(h.labels, c.NodeLabels)
	if err := os.MkdirAll(c.RootDir, 0o750); err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	err := h.measure()
	if err != nil {
		return nil, err
	}
	if err := h.makeCgroups(ctx); err != nil {
		return nil, err
	}
	if err := h.makeNetwork(); err != nil {
		return nil, err
	}
	h.setOOMScore()
	if h.users, h.noUsers = userids.New(userids.Options{RootDir: c.RootDir, MaxPods: maxPods(c.Pods)}); h.noUsers != nil {
		b.log.Warn("no pod can have users of its own", "err", h.noUsers)
	}
	return h, h.makeVolumes()
}

// measure finds what the host has, and what of it pods may use.
func (h *host) measure() (err error) {
	c := h.b.config
	if h.capacity, err = node.Capacity(c.RootDir, maxPods(c.Pods)); err != nil {
		return err
	}
	if err := node.ValidateReserved(withPIDs(h.capacity), c.Reserved.System, c.Reserved.Kube); err != nil {
		return err
	}
	h.allocatable = node.Allocatable(h.capacity, c.Reserved.System, c.Reserved.Kube, evictionReserve(c, h.capacity))
	return nil
}

// withPIDs is a capacity with how many processes the host may run: of them some can
// be reserved, and none are shown on a Node.
func withPIDs(capacity corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(capacity)
	if _, most := node.Processes(); most > 0 {
		out[cgroups.PIDs] = *resource.NewQuantity(most, resource.DecimalSI)
	}
	return out
}

// maxPods is how many pods this host may run.
func maxPods(p nodeconfig.Pods) int {
	if p.PerCore == 0 {
		return p.Max
	}
	return min(p.Max, p.PerCore*goruntime.NumCPU())
}

func (h *host) addresses() error {
	var err error
	if h.addrs = h.b.config.NodeIPs; len(h.addrs) == 0 {
		h.addrs, err = node.Addresses()
	}
	for _, ip := range h.addrs {
		h.ips = append(h.ips, ip.String())
	}
	return err
}

// makeCgroups chooses the driver: the configured one, or what the runtime says,
// or what fits the host until the runtime says something.
func (h *host) makeCgroups(ctx context.Context) (err error) {
	c := h.b.config.Cgroups
	driver := c.Driver
	if driver == "" {
		driver, err = cgroupDriver(ctx, h.b.runtime.client)
		h.guessed.Store(err != nil)
	}
	h.cgroups, err = cgroups.New(cgroups.Options{
		Root: c.Root, Driver: driver, PodPidsLimit: h.b.config.Pods.PidsLimit,
		CPUQuota: c.CPUCFSQuota, CPUPeriod: c.CPUCFSPeriod, PodsLimit: h.forAllPods(),
		ReserveMemory: c.TieredMemoryReservation, MemoryThrottlingFactor: c.MemoryThrottlingFactor,
	})
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	if c.FailV1 && !h.cgroups.V2() {
		return errors.New("failCgroupV1: this host has cgroup v1")
	}
	if swap, err := node.SwapEnabled(); err == nil && swap && c.FailSwapOn {
		return errors.New("failSwapOn: this host has swap; swapoff -a, or set failSwapOn: false")
	}
	h.warnOfV1(c)
	return nil
}

// warnOfV1 tells what the configuration asks for and cgroup v1 cannot give.
func (h *host) warnOfV1(c nodeconfig.Cgroups) {
	if h.cgroups.V2() {
		return
	}
	for field, asked := range map[string]bool{
		"memoryThrottlingFactor": c.MemoryThrottlingFactor > 0, "memoryReservationPolicy": c.TieredMemoryReservation, "memorySwap.swapBehavior": c.LimitedSwap,
	} {
		if asked {
			h.b.log.Warn("this host has cgroup v1: " + field + " has no effect")
		}
	}
}

// forAllPods is what all pods together may use: the node's capacity, less what
// is reserved where that is enforced. What must stay free of memory is theirs
// until eviction takes it. Huge pages are not taken off: the kernel counts them apart.
func (h *host) forAllPods() corev1.ResourceList {
	if !h.b.config.Cgroups.EnforcePods {
		return h.capacity
	}
	r := h.b.config.Reserved
	all := node.Unreserved(withPIDs(h.capacity), r.System, r.Kube)
	if s, k := r.System[cgroups.PIDs], r.Kube[cgroups.PIDs]; s.IsZero() && k.IsZero() {
		delete(all, cgroups.PIDs) // the kernel has its own limit
	}
	return all
}

func (h *host) makeNetwork() (err error) {
	c := h.b.config.Network
	if len(c.CNIPodCIDRs) > 0 {
		if err := cni.WriteDefault(c.CNIConfDir, c.CNIBinDirs, c.CNIPodCIDRs, true); err != nil {
			return fmt.Errorf("write the default network configuration: %w", err)
		}
	}
	if h.networks, err = networks.New(h.b.networksOptions()); err != nil {
		h.b.log.Error("part of what pods' networks are attached to is not known", "err", err)
	}
	h.network, err = cni.New(cni.Options{ConfDir: c.CNIConfDir, BinDirs: c.CNIBinDirs})
	return err
}

// writeNetwork makes the default network for the pod ranges that a server has
// given the node. The first pod finds the way out made already.
func (h *host) writeNetwork(ranges []string) error {
	var parsed []netip.Prefix
	for _, r := range ranges {
		p, err := netip.ParsePrefix(r)
		if err != nil {
			return err
		}
		parsed = append(parsed, p)
	}
	if g := h.b.joined.gateway; g != nil {
		_ = g.SetPodCIDRs(parsed) // says so itself, and is tried again
	}
	c := h.b.config.Network
	if err := cni.WriteDefault(c.CNIConfDir, c.CNIBinDirs, parsed, !c.HostGateway); err != nil {
		return err
	}
	h.ranged.Store(true)
	return nil
}

// PodIPsChanged has what is sent to a pod's host ports go where the pod is now.
func (h *host) PodIPsChanged(pod *corev1.Pod, ips []string) {
	n, err := cni.DeleteStaleUDPFlows(pod, ips)
	on := pod.Namespace + "/" + pod.Name
	if err != nil {
		h.b.log.Warn("flows to the pod's host ports may still lead elsewhere", "pod", on, "err", err)
	} else if n > 0 {
		h.b.log.Info("flows to the pod's host ports that led elsewhere were forgotten", "pod", on, "flows", n)
	}
}

func (h *host) makeVolumes() (err error) {
	c := h.b.config
	if err := volumes.EnsureSharedMount(c.RootDir); err != nil {
		h.b.log.Warn("mounts made in pods will not be seen by others", "root", c.RootDir, "err", err)
	}
	h.names.use(c.Network)
	_ = h.hostResolv() // tells at once if there is none
	h.volumes, err = volumes.New(volumes.Options{
		RootDir: c.RootDir, PodLogsDir: c.PodLogsDir, NodeName: c.NodeName, HostIPs: h.ips, Allocatable: h.Allocatable,
		Hostname:          func(pod *corev1.Pod) (string, string) { return criconfig.Hostname(h.criNode(), pod) },
		Env:               h.env,
		RecursiveReadOnly: h.recursiveReadOnly,
	})
	return err
}

// hostResolv is how the host resolves names now: it may have been told so only
// after berth began.
func (h *host) hostResolv() criconfig.ResolvConf {
	r, file, err := h.names.now()
	switch last := h.names.told.Swap(&file); {
	case err != nil:
		if last == nil || *last != "" {
			h.b.log.Warn("pods get no name servers of the host", "err", err)
		}
	case file == h.names.instead.Path && file != "" && (last == nil || *last != file):
		h.b.log.Info("pods get other name servers than the host's programs, which ask one on its loopback", "servers", r.Nameservers, "file", file)
	}
	return r
}

// recursiveReadOnly reports whether the pod's runtime handler can do it.
func (h *host) recursiveReadOnly(pod *corev1.Pod) bool {
	n := h.criNode()
	handler, err := criconfig.RuntimeHandler(n, pod)
	return err == nil && n.Features[handler].RecursiveReadOnlyMounts
}

// env is a container's environment, for subPathExpr.
func (h *host) env(_ context.Context, pod *corev1.Pod, c *corev1.Container, objs plan.Objects, sb plan.Sandbox) (func(string) (string, bool), error) {
	vars, _, err := criconfig.Env(h.criNode(), pod, c, plan.ContainerSetup{
		Sandbox: sb, HostIPs: h.ips, Objects: objs, Allocatable: h.allocatable, Files: h.volumes.EnvFiles(pod, c),
	})
	if err != nil {
		return nil, err
	}
	byName := make(map[string]string, len(vars))
	for _, v := range vars {
		byName[v.Key] = string(v.Value)
	}
	return func(name string) (string, bool) { v, ok := byName[name]; return v, ok }, nil
}

// Allocatable is what pods may use of the node.
func (h *host) Allocatable() corev1.ResourceList { return h.allocatable }

// criNode is what the translation of pods must know of this host now.
func (h *host) criNode() criconfig.Node {
	c := h.b.config
	n := criconfig.Node{
		Name: c.NodeName, Capacity: h.capacity, Allocatable: h.allocatable,
		Standalone: c.Standalone(), ClusterDomain: c.Network.ClusterDomain, HostResolvConf: h.hostResolv(), HostIPs: h.ips,
		UserIDs:            h.userIDs,
		NoBandwidthReason:  h.network.BandwidthUnsupportedReason(),
		SeccompProfileRoot: filepath.Join(c.RootDir, "seccomp"), SeccompDefault: c.Pods.SeccompDefault,
		CgroupV2: h.cgroups.V2(), HugePageSizes: h.cgroups.HugePageSizes(), CanLimitSwap: h.cgroups.SwapLimits(),
		CPUCFSQuotaDisabled: !c.Cgroups.CPUCFSQuota, CPUCFSQuotaPeriod: c.Cgroups.CPUCFSPeriod, SingleProcessOOMKill: c.Cgroups.SingleProcessOOMKill,
		MemoryThrottlingFactor: c.Cgroups.MemoryThrottlingFactor, MemoryReservation: c.Cgroups.TieredMemoryReservation, PageSize: int64(os.Getpagesize()),
	}
	if c.Cgroups.LimitedSwap {
		n.SwapCapacity = node.SwapTotal()
	}
	for _, ip := range c.Network.ClusterDNS {
		n.ClusterDNS = append(n.ClusterDNS, ip.String())
	}
	if st := h.b.runtime.status.Load(); st != nil {
		n.SupplementalGroupsPolicy, n.NoImageVolumesReason, n.NoCDIReason = st.SupplementalGroupsPolicy, st.NoImageVolumesReason, st.NoCDIReason
		n.Features = make(map[string]criconfig.HandlerFeatures, len(st.Handlers))
		n.Handlers = make(map[string]string, len(st.Handlers))
		for name, f := range st.Handlers {
			n.Features[name] = criconfig.HandlerFeatures{RecursiveReadOnlyMounts: f.RecursiveReadOnlyMounts, UserNamespaces: f.UserNamespaces}
			if name != "" { // without a server a RuntimeClass is named after its handler
				n.Handlers[name] = name
			}
		}
	}
	if j := h.b.joined; j != nil {
		if n.Handlers == nil {
			n.Handlers = map[string]string{} // a runtime that does not tell its handlers may have them
		}
		maps.Copy(n.Handlers, j.source.RuntimeHandlers())
	}
	return n
}

// userIDs are the host IDs of a pod that has users of its own.
func (h *host) userIDs(uid string) (criconfig.IDRange, error) {
	if h.noUsers != nil {
		return criconfig.IDRange{}, h.noUsers
	}
	first, err := h.users.Allocate(uid)
	return criconfig.IDRange{First: first, Count: userids.PerPod}, err
}

// Pods lists the pods that left a directory or a cgroup behind.
func (h *host) Pods(ctx context.Context) ([]types.UID, error) {
	dirs, err := h.volumes.Pods(ctx)
	groups, err2 := h.cgroups.Pods(ctx)
	return append(dirs, groups...), errors.Join(err, err2)
}

// setOOMScore keeps the agent out of the kernel's way when memory is short.
func (h *host) setOOMScore() {
	text := strconv.Itoa(h.b.config.Pods.OOMScoreAdj)
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(text), 0o644); err != nil {
		h.b.log.Debug("oom_score_adj stays as it is", "wanted", text, "err", err)
	}
}

// evictionReserve is the memory and disk that hard eviction keeps free: pods
// cannot count on it.
func evictionReserve(c *nodeconfig.Config, capacity corev1.ResourceList) corev1.ResourceList {
	signals := map[string]corev1.ResourceName{"memory.available": corev1.ResourceMemory, "nodefs.available": corev1.ResourceEphemeralStorage}
	out := corev1.ResourceList{}
	for _, t := range c.Eviction.Thresholds {
		name, of := signals[t.Signal]
		switch {
		case !of || !t.Hard:
		case t.Quantity != nil:
			out[name] = *t.Quantity
		default:
			whole := capacity[name]
			out[name] = *resource.NewQuantity(int64(float64(whole.Value())*t.Percent/100), resource.BinarySI)
		}
	}
	return out
}
