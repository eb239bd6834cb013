package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/checkpoint"
	"berth/agent/criruntime"
	"berth/agent/ownership"
	"berth/agent/plan"
	"berth/cni"
	"berth/cni/networks"
	"berth/cri/criconfig"
	"berth/internal/nodeconfig"
	"berth/internal/userids"
	"berth/node"
	"berth/node/cgroups"
	"berth/node/handover"
	"berth/podspec"
	"berth/volumes"
)

// host adapts this host to the stages of the agent.
type host struct {
	b                 *berth
	ips               []string
	addrs             []netip.Addr // parsed form of ips
	labels            map[string]string
	resources         node.Resources
	volumes           *volumes.Volumes
	owner             *ownership.Registry // which pods on the host belong to berth
	adopter           *criruntime.Adopter // adopts pods of the kubelet
	cgroups           *cgroups.Cgroups
	network           *cni.Network
	networks          *networks.Networks // additional networks
	resolvConf        node.PodResolvConf
	userNamespaces    *userids.Allocator
	userNamespacesErr error       // why user namespaces are not available
	hasPodCIDRs       atomic.Bool // the API server has assigned pod CIDRs to the node
}

func newHost(ctx context.Context, b *berth) (*host, error) {
	c := b.config
	h := &host{b: b, labels: node.Labels(c.NodeName, c.NodeLabels)}
	var err error
	if h.addrs, err = node.ConfiguredAddresses(c.NodeIPs); err != nil {
		return nil, err
	}
	h.ips = node.AddressStrings(h.addrs)
	if err := os.MkdirAll(c.RootDir, 0o750); err != nil {
		return nil, fmt.Errorf("root directory: %w", err)
	}
	if h.resources, err = node.ConfiguredResources(c); err != nil {
		return nil, err
	}
	if err := h.makeCgroups(ctx); err != nil {
		return nil, err
	}
	if err := h.makeNetwork(); err != nil {
		return nil, err
	}
	h.setOOMScore()
	h.makeUserNamespaces()
	return h, h.makeVolumes()
}

func (h *host) makeUserNamespaces() {
	c := h.b.config
	h.userNamespaces, h.userNamespacesErr = userids.New(
		userids.Options{RootDir: c.RootDir, MaxPods: node.MaxPods(c.Pods.Max, c.Pods.PerCore)},
	)
	if h.userNamespacesErr != nil {
		h.b.log.Warn("user namespaces unavailable", "err", h.userNamespacesErr)
	}
}

// runtimeHandler returns the runtime handler of a pod; empty: the default one.
func (h *host) runtimeHandler(pod *corev1.Pod) string {
	name, _ := criconfig.RuntimeHandler(h.criNode(), pod)
	return name
}

// makeCgroups selects the configured cgroup driver, the runtime's or, if it is not known yet, the
// default.
func (h *host) makeCgroups(ctx context.Context) (err error) {
	c := h.b.config.Cgroups
	driver := c.Driver
	if driver == "" {
		driver, err = h.b.runtime.client.CgroupDriver(ctx)
		h.b.runtime.driver.Assumed.Store(err != nil)
	}
	h.cgroups, err = cgroups.New(cgroups.Options{
		Root: c.Root, Driver: driver, PodPidsLimit: h.b.config.Pods.PidsLimit,
		CPUQuota: c.CPUCFSQuota, CPUPeriod: c.CPUCFSPeriod, PodsLimit: h.resources.PodsLimit,
		ReserveMemory: c.TieredMemoryReservation, MemoryThrottlingFactor: c.MemoryThrottlingFactor,
		Owner: h,
	})
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	h.warnCgroupV1(c)
	return errors.Join(node.CheckCgroupVersion(c, h.cgroups.V2()), node.CheckSwap(c))
}

// warnCgroupV1 logs configured features that cgroup v1 does not support.
func (h *host) warnCgroupV1(c nodeconfig.Cgroups) {
	if fields := c.V2Fields(); !h.cgroups.V2() && len(fields) > 0 {
		h.b.log.Warn("configuration fields have no effect with cgroup v1", "fields", fields)
	}
}

func (h *host) makeNetwork() (err error) {
	c := h.b.config.Network
	if len(c.CNIPodCIDRs) > 0 {
		if err := cni.WriteDefault(c.CNIConfDir, c.CNIBinDirs, c.CNIPodCIDRs, true); err != nil {
			return fmt.Errorf("write the default network configuration: %w", err)
		}
	}
	if h.networks, err = networks.New(h.b.networksOptions()); err != nil {
		h.b.log.Error("additional networks could not be restored completely", "err", err)
	}
	h.network, err = cni.New(cni.Options{ConfDir: c.CNIConfDir, BinDirs: c.CNIBinDirs})
	return err
}

// writeNetwork writes the default network configuration for the pod CIDRs of the node, after the
// gateway was configured, so that the first pod has connectivity.
func (h *host) writeNetwork(ranges []string) error {
	parsed, err := cni.ParsePodCIDRs(ranges)
	if err != nil {
		return err
	}
	if g := h.b.cluster.gateway; g != nil {
		_ = g.SetPodCIDRs(parsed) // logs errors itself and is retried
	}
	c := h.b.config.Network
	if err := cni.WriteDefault(c.CNIConfDir, c.CNIBinDirs, parsed, !c.HostGateway); err != nil {
		return err
	}
	h.hasPodCIDRs.Store(true)
	return nil
}

func (h *host) makeVolumes() (err error) {
	c := h.b.config
	if err := volumes.EnsureSharedMount(c.RootDir); err != nil {
		h.b.log.Warn("root directory is not a shared mount, mount propagation from pods is unavailable",
			"path", c.RootDir, "err", err)
	}
	h.resolvConf.SetPaths(c.Network.ResolvConf, c.Network.FallbackResolvConf)
	_ = h.resolvConf.Current(h.b.log) // logs a missing file immediately
	h.volumes, err = volumes.New(volumes.Options{
		RootDir: c.RootDir, PodLogsDir: c.PodLogsDir, NodeName: c.NodeName, HostIPs: h.ips, Allocatable: h.Allocatable,
		Hostname:          func(pod *corev1.Pod) (string, string) { return criconfig.Hostname(h.criNode(), pod) },
		Env:               h.env,
		RecursiveReadOnly: h.recursiveReadOnly, Claim: h.Claim,
	})
	if err == nil {
		h.owner = ownership.New(h.volumes, h.cgroups.InUse)
	}
	return err
}

// Owns reports whether a pod belongs to berth.
func (h *host) Owns(uid types.UID) bool { return h.owner.Owns(uid) }

// Claim records that berth creates a pod.
func (h *host) Claim(uid types.UID) error { return h.owner.Claim(uid) }

// ownsLeakedTask reports whether a task in a cgroup that the runtime does not know belongs to berth.
func (h *host) ownsLeakedTask(cgroup string) bool {
	uid, ok := h.cgroups.PodOf(cgroup)
	return ok && h.owner.OwnsLeak(uid)
}

// unmarked reports whether a pod that has berth's labels in the runtime was handed over to the kubelet:
// its directory has no mark, and nothing else proves that it belongs to berth. The local store, which
// records that too, can have been removed since.
func (h *host) unmarked(uid types.UID) bool { return h.owner.Unmarked(uid) }

// foreignPods lists the pods of other programs that have a directory or a cgroup.
func (h *host) foreignPods(ctx context.Context) ([]types.UID, error) {
	_, dirs, err := volumes.ListPods(ctx, h.b.config.RootDir)
	groups, err2 := h.cgroups.ForeignPods(ctx)
	return append(slices.DeleteFunc(dirs, h.Owns), groups...), errors.Join(err, err2)
}

// restoreOwners restores from the store which pods belong to berth.
func (h *host) restoreOwners(store *checkpoint.Store, records map[types.UID]checkpoint.Record) {
	deleted, err := store.DeletedPods()
	h.owner.RestoreDeleted(deleted...)
	err = errors.Join(err, h.restoreAdoptions(store))
	if err = errors.Join(err, h.owner.Prove(checkpoint.UnmarkedPods(records)...)); err != nil {
		h.b.log.Warn("owners of pods not restored", "err", err)
	}
}

// restoreAdoptions restores from the store which pods of the kubelet berth has adopted, and which of
// its own pods it has handed over.
func (h *host) restoreAdoptions(store *checkpoint.Store) error {
	stored, err := store.NodeValue(ownership.StoreKey)
	handover, err2 := ownership.NewHandover(stored,
		func(text []byte) { store.PutNodeValue(ownership.StoreKey, text) },
		func(s ownership.State) { h.b.runtime.client.SetAdoptions(s.Objects(), s.Released) })
	h.adopter = &criruntime.Adopter{
		Client: h.b.runtime.client, Handover: handover, Flush: store.Flush,
		AdoptDir: h.volumes.AdoptDir, Prove: h.owner.Prove, ForeignDirs: h.foreignDirs,
		MirrorStatus: h.b.mirrorStatus(), Unsupported: h.b.podNotAdopted,
	}
	adopted := slices.Collect(maps.Keys(handover.State().Adopted))
	return errors.Join(err, err2, h.owner.Prove(adopted...))
}

// mirrorStatus returns the statuses of mirror pods that berth takeover has recorded.
func (b *berth) mirrorStatus() func(namespace, name string) *corev1.PodStatus {
	record, err := handover.ReadRecord(b.config.StateDir)
	if err != nil {
		b.log.Warn("hand-over record unreadable, static pods become ready after their probes", "err", err)
	}
	return record.MirrorStatus
}

// podNotAdopted reports a pod that stays with the kubelet.
func (b *berth) podNotAdopted(p *corev1.Pod, uses []podspec.FeatureUse) {
	b.log.Warn("pod of the kubelet not adopted: it uses an unsupported feature", "pod", p.Namespace+"/"+p.Name,
		"podUID", string(p.UID), "fields", fmt.Sprint(uses))
	b.warnPod(p, admission.ReasonUnsupportedPodFeature,
		fmt.Sprintf("The pod stays with the kubelet and is not managed: %s", uses[0]))
}

// foreignDirs lists the pods of other programs that have a directory.
func (h *host) foreignDirs(ctx context.Context) ([]types.UID, error) {
	_, dirs, err := volumes.ListPods(ctx, h.b.config.RootDir)
	return slices.DeleteFunc(dirs, h.Owns), err
}

// recursiveReadOnly reports whether the pod's runtime handler supports recursive read-only mounts.
func (h *host) recursiveReadOnly(pod *corev1.Pod) bool {
	n := h.criNode()
	handler, err := criconfig.RuntimeHandler(n, pod)
	return err == nil && n.Features[handler].RecursiveReadOnlyMounts
}

// env returns a container's environment for subPathExpr.
func (h *host) env(
	_ context.Context,
	pod *corev1.Pod,
	c *corev1.Container,
	objs plan.Objects,
	sb plan.Sandbox,
) (func(string) (string, bool), error) {
	vars, _, err := criconfig.Env(h.criNode(), pod, c, plan.ContainerConfig{
		Sandbox: sb, HostIPs: h.ips, Objects: objs, Allocatable: h.Allocatable(), Files: h.volumes.EnvFiles(pod, c),
	})
	if err != nil {
		return nil, err
	}
	return criconfig.LookupEnv(vars), nil
}

// Allocatable is the capacity available to pods.
func (h *host) Allocatable() corev1.ResourceList { return h.resources.Allocatable }

// criNode returns the current state of this host for the conversion of pods to CRI requests.
func (h *host) criNode() criconfig.Node {
	c := h.b.config
	n := criconfig.Node{
		Name: c.NodeName, Instance: ownership.Instance(c.RootDir),
		Capacity: h.resources.Capacity, Allocatable: h.resources.Allocatable,
		Standalone: c.Standalone(), HostIPs: h.ips, UserIDs: h.userIDs,
		ClusterDomain: h.b.services.ClusterDomain(), ClusterDNS: h.b.services.clusterDNS(),
		HostResolvConf:     h.resolvConf.Current(h.b.log),
		NoBandwidthReason:  h.network.BandwidthUnsupportedReason(),
		SeccompProfileRoot: filepath.Join(c.RootDir, "seccomp"), SeccompDefault: c.Pods.SeccompDefault,
		CgroupV2: h.cgroups.V2(), HugePageSizes: h.cgroups.HugePageSizes(), CanLimitSwap: h.cgroups.SwapLimits(),
		CPUCFSQuotaDisabled: !c.Cgroups.CPUCFSQuota, CPUCFSQuotaPeriod: c.Cgroups.CPUCFSPeriod,
		SingleProcessOOMKill:   c.Cgroups.SingleProcessOOMKill,
		MemoryThrottlingFactor: c.Cgroups.MemoryThrottlingFactor, MemoryReservation: c.Cgroups.TieredMemoryReservation,
		PageSize: int64(os.Getpagesize()),
	}
	if c.Cgroups.LimitedSwap {
		n.SwapCapacity = node.SwapTotal()
	}
	h.addRuntimeHandlers(&n)
	return n
}

// addRuntimeHandlers adds what the runtime and the RuntimeClasses of the cluster report.
func (h *host) addRuntimeHandlers(n *criconfig.Node) {
	if st := h.b.runtime.statuses.Latest(); st != nil {
		st.ApplyTo(n)
	}
	if j := h.b.cluster; j != nil {
		if n.Handlers == nil {
			n.Handlers = map[string]string{} // a runtime that does not report handlers may still have them
		}
		maps.Copy(n.Handlers, j.source.RuntimeHandlers())
	}
}

// userIDs returns the host user IDs of a pod with a user namespace.
func (h *host) userIDs(uid string) (criconfig.IDRange, error) {
	if h.userNamespacesErr != nil {
		return criconfig.IDRange{}, h.userNamespacesErr
	}
	first, err := h.userNamespaces.Allocate(uid)
	return criconfig.IDRange{First: first, Count: userids.PerPod}, err
}

// Pods lists the pods of berth that have a directory or a cgroup.
func (h *host) Pods(ctx context.Context) ([]types.UID, error) {
	dirs, err := h.volumes.Pods(ctx)
	groups, err2 := h.cgroups.Pods(ctx)
	return append(dirs, groups...), errors.Join(err, err2)
}

// setOOMScore protects the agent from the OOM killer.
func (h *host) setOOMScore() {
	score := h.b.config.Pods.OOMScoreAdj
	if err := node.SetOOMScore(score); err != nil {
		h.b.log.Debug("oom_score_adj could not be set", "value", score, "err", err)
	}
}
