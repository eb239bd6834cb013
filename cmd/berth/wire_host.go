package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/cgroups"
	"berth/cni"
	"berth/cri/criconfig"
	"berth/node"
	"berth/nodeconfig"
	"berth/volumes"
)

// host is this machine as the agent's stages want it.
type host struct {
	b           *berth
	ips         []string
	labels      map[string]string
	capacity    corev1.ResourceList
	allocatable corev1.ResourceList
	volumes     *volumes.Volumes
	cgroups     *cgroups.Cgroups
	network     *cni.Network
	resolv      criconfig.Resolv
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
	var err error
	if h.capacity, err = node.Capacity(c.RootDir, c.Pods.Max); err != nil {
		return nil, err
	}
	h.allocatable = node.Allocatable(h.capacity, c.Reserved.System, c.Reserved.Kube, evictionReserve(c, h.capacity))
	if err := h.makeCgroups(ctx); err != nil {
		return nil, err
	}
	if err := h.makeNetwork(); err != nil {
		return nil, err
	}
	h.setOOMScore()
	return h, h.makeVolumes()
}

func (h *host) addresses() error {
	for _, ip := range h.b.config.NodeIPs {
		h.ips = append(h.ips, ip.String())
	}
	if len(h.ips) > 0 {
		return nil
	}
	found, err := node.Addresses()
	for _, ip := range found {
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
		CPUQuota: c.CPUCFSQuota, CPUPeriod: c.CPUCFSPeriod, Pods: h.forAllPods(),
	})
	if err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	if c.FailV1 && !h.cgroups.V2() {
		return errors.New("failCgroupV1: this host has cgroup v1")
	}
	if swap, err := node.SwapOn(); err == nil && swap && c.FailSwapOn {
		return errors.New("failSwapOn: this host has swap; swapoff -a, or set failSwapOn: false")
	}
	return nil
}

// forAllPods is what all pods together may use: the node's capacity, less what
// is reserved where that is enforced. What must stay free of memory is theirs
// until eviction takes it.
func (h *host) forAllPods() corev1.ResourceList {
	if !h.b.config.Cgroups.EnforcePods {
		return h.capacity
	}
	return node.Allocatable(h.capacity, h.b.config.Reserved.System, h.b.config.Reserved.Kube)
}

func (h *host) makeNetwork() (err error) {
	c := h.b.config.Network
	if len(c.CNIPodCIDRs) > 0 {
		if err := cni.WriteDefault(c.CNIConfDir, c.CNIPodCIDRs); err != nil {
			return fmt.Errorf("write the default network configuration: %w", err)
		}
	}
	h.network, err = cni.New(cni.Options{ConfDir: c.CNIConfDir, BinDirs: c.CNIBinDirs})
	return err
}

func (h *host) makeVolumes() (err error) {
	c := h.b.config
	if err := volumes.EnsureShared(c.RootDir); err != nil {
		h.b.log.Warn("mounts made in pods will not be seen by others", "root", c.RootDir, "err", err)
	}
	if text, err := os.ReadFile(c.Network.ResolvConf); err == nil {
		h.resolv = criconfig.ParseResolv(string(text))
	} else if c.Network.ResolvConf != "" {
		h.b.log.Warn("pods get no name servers of the host", "err", err)
	}
	h.volumes, err = volumes.New(volumes.Options{
		RootDir: c.RootDir, PodLogsDir: c.PodLogsDir, NodeName: c.NodeName, HostIPs: h.ips, Allocatable: h.Allocatable,
		Hostname:          func(pod *corev1.Pod) (string, string) { return criconfig.Hostname(h.criNode(), pod) },
		Env:               h.env,
		RecursiveReadOnly: h.recursiveReadOnly,
	})
	return err
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
		Alone: c.Standalone(), ClusterDomain: c.Network.ClusterDomain, HostResolv: h.resolv,
		SeccompRoot: filepath.Join(c.RootDir, "seccomp"), SeccompDefault: c.Pods.SeccompDefault,
		CgroupV2: h.cgroups.V2(), HugePageSizes: h.cgroups.HugePageSizes(), SwapLimits: h.cgroups.SwapLimits(),
		NoCFS: !c.Cgroups.CPUCFSQuota, CFSPeriod: c.Cgroups.CPUCFSPeriod, SingleOOMKill: c.Cgroups.SingleOOM,
	}
	for _, ip := range c.Network.ClusterDNS {
		n.ClusterDNS = append(n.ClusterDNS, ip.String())
	}
	if st := h.b.runtime.status.Load(); st != nil {
		n.StrictGroups, n.NoImageVolumes = st.StrictGroups, st.NoImageVolumes
		n.Features = make(map[string]criconfig.HandlerFeatures, len(st.Handlers))
		n.Handlers = make(map[string]string, len(st.Handlers))
		for name, f := range st.Handlers {
			n.Features[name] = criconfig.HandlerFeatures{RecursiveReadOnlyMounts: f.RecursiveReadOnlyMounts, UserNamespaces: f.UserNamespaces}
			if name != "" { // without a server a RuntimeClass is named after its handler
				n.Handlers[name] = name
			}
		}
	}
	return n
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
