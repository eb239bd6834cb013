package stats

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri"
	"berth/node"
	"berth/node/cgroups"
	"berth/nodeapi/server"
	"berth/podspec"
	"berth/volumes"
	"berth/volumes/csi"
)

// Collector measures the resource usage of the node and its pods. It is safe for concurrent use.
type Collector struct {
	Cgroups  *cgroups.Cgroups
	Volumes  *volumes.Volumes
	Runtime  *cri.Client
	Pods     func() []*status.Snapshot // the pods known to the agent
	NodeName string
	RootDir  string
	CPUs     int
	Log      *slog.Logger
	// CSIStats returns the last usage of a volume that its CSI driver has reported. Nil: there are none.
	CSIStats func(uid types.UID, specName string) (csi.Stats, bool)
}

// Stats measures the usage of the node and its pods from the kernel. The runtime is queried only
// for file systems, if requested.
func (sc *Collector) Stats(ctx context.Context, disks bool) (server.Stats, error) {
	all := sc.Pods()
	ids := map[types.UID][]string{}
	for _, s := range all {
		for _, sb := range s.Observed.Sandboxes {
			if sb.Ready {
				ids[s.Pod.UID] = append(ids[s.Pod.UID], sb.ID)
			}
		}
		for _, k := range s.Observed.Containers {
			if k.State == plan.Running {
				ids[s.Pod.UID] = append(ids[s.Pod.UID], k.ID)
			}
		}
	}
	use, err := sc.Cgroups.Details(ctx, ids)
	if err != nil {
		return server.Stats{}, err
	}
	out := server.Stats{Node: sc.nodeStats()}
	var layers map[string]cri.WritableLayer
	if disks {
		out.Node.ImageFs = sc.imageFs(ctx)
		if layers, err = sc.Runtime.WritableLayers(ctx); err != nil {
			sc.Log.Debug("writable layer usage unavailable", "err", err)
		}
	}
	for _, s := range all {
		u, there := use[s.Pod.UID]
		if !there || u.Pod.At.IsZero() {
			continue // the pod has no cgroup
		}
		p := podStats(s, u)
		if disks {
			sc.addDisks(ctx, &p, s, layers, out.Node)
		}
		out.Pods = append(out.Pods, p)
	}
	return out, nil
}

func (sc *Collector) nodeStats() server.NodeStats {
	whole := sc.Cgroups.RootDetail()
	n := server.NodeStats{
		Name: sc.NodeName, Started: node.BootTime(), CPUs: sc.CPUs,
		Usage: usageOf(whole), Interfaces: interfacesOf(node.Interfaces(os.Getpid())),
	}
	if m, err := node.ReadMemory(); err == nil {
		n.Memory, n.Swap = m.Total, server.Swap{Used: m.SwapUsed, Free: m.SwapFree}
		n.Usage.Memory, n.Usage.WorkingSet, n.Usage.RSS = m.Used, m.WorkingSet, m.Anonymous
		n.Usage.Cache, n.Usage.MappedFile = m.Cache, m.Mapped
		n.Usage.MemoryLimit = 0
	}
	n.NodeFs = fsStatsOf(sc.RootDir)
	n.Processes, n.MaxPID = node.Processes()
	return n
}

func podStats(s *status.Snapshot, u cgroups.PodDetail) server.PodStats {
	p := server.PodStats{
		Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: string(s.Pod.UID), Cgroup: u.Pod.Path, Usage: usageOf(u.Pod),
		Containers: []server.ContainerStats{},
	}
	if s.Status.StartTime != nil {
		p.Started = s.Status.StartTime.Time
	}
	if len(s.Observed.Sandboxes) > 0 {
		if d, there := u.Containers[s.Observed.Sandboxes[0].ID]; there {
			p.Sandbox, p.SandboxCgroup = s.Observed.Sandboxes[0].ID, d.Path
			if d.PID > 0 && !s.Pod.Spec.HostNetwork {
				p.Interfaces = interfacesOf(node.Interfaces(d.PID))
			}
		}
	}
	for _, k := range s.Observed.Containers {
		if d, there := u.Containers[k.ID]; there && k.State == plan.Running {
			p.Containers = append(p.Containers, server.ContainerStats{
				Name: k.Name, ID: k.ID, Image: imageOf(k), Started: k.StartedAt, Cgroup: d.Path, Usage: usageOf(d),
			})
		}
	}
	return p
}

// imageOf returns the image name reported by the runtime.
func imageOf(k plan.Container) string {
	if k.ImageName != "" {
		return k.ImageName
	}
	return k.Image
}

func interfacesOf(all []node.Interface) []server.Interface {
	out := make([]server.Interface, 0, len(all))
	for _, i := range all {
		out = append(out, server.Interface(i))
	}
	return out
}

func usageOf(d cgroups.Detail) server.Usage {
	u := server.Usage{
		Timestamp: d.At, CPU: d.CPU, User: d.User, System: d.System,
		CFSPeriods: d.Periods, CFSThrottledPeriods: d.Throttled, CFSThrottledTime: d.ThrottledTime,
		Memory: d.Memory, WorkingSet: d.WorkingSet, RSS: d.RSS, Cache: d.Cache, MappedFile: d.Mapped, MaxUsage: d.Peak,
		Swap:   d.Swap,
		Faults: d.Faults, MajorFaults: d.MajorFaults, OOMKills: d.OOMKills,
		Processes: uint64(d.Processes), Threads: uint64(d.Threads), CPUShares: d.Shares, MemoryLimit: d.MemoryLimit,
	}
	for _, dev := range d.Devices {
		u.Devices = append(u.Devices, server.Device(dev))
	}
	if d.Quota > 0 {
		u.CPULimit = &server.CPULimit{Quota: d.Quota, Period: d.Period}
	}
	if s := d.PSI; s != nil {
		u.PSI = &server.PSI{CPU: psiOf(s.CPU), Memory: psiOf(s.Memory), IO: psiOf(s.IO)}
	}
	return u
}

func psiOf(s cgroups.PSIStats) server.PSIStats {
	return server.PSIStats{Some: server.PSIData(s.Some), Full: server.PSIData(s.Full)}
}

// fsStatsOf returns the file system of a path; nil: not available.
func fsStatsOf(path string) *server.FsStats {
	d, err := node.ReadDisk(path)
	if err != nil {
		return nil
	}
	return &server.FsStats{
		Timestamp: time.Now(), Capacity: d.Capacity, Available: d.Available, Used: d.Used,
		Inodes: d.Inodes, InodesFree: d.InodesFree, InodesUsed: d.Inodes - min(d.InodesFree, d.Inodes),
	}
}

// imageFs returns the runtime's image filesystem; nil: not reported.
func (sc *Collector) imageFs(ctx context.Context) *server.FsStats {
	i, err := sc.Runtime.ImageFilesystem(ctx)
	if err != nil || i.Path == "" {
		return nil
	}
	d := fsStatsOf(i.Path)
	if d != nil {
		d.Used, d.InodesUsed = i.Bytes, i.Inodes
	}
	return d
}

// addDisks adds the disk usage of a pod: writable layers, logs and volumes.
func (sc *Collector) addDisks(
	ctx context.Context,
	p *server.PodStats,
	s *status.Snapshot,
	layers map[string]cri.WritableLayer,
	n server.NodeStats,
) {
	if n.NodeFs == nil {
		return
	}
	part := func(of *server.FsStats, bytes, inodes uint64) *server.FsStats {
		d := *of
		d.Used, d.InodesUsed = bytes, inodes
		return &d
	}
	var used, inodes uint64
	for i := range p.Containers {
		k := &p.Containers[i]
		if l, known := layers[k.ID]; known && n.ImageFs != nil {
			k.Rootfs = part(n.ImageFs, l.Bytes, l.Inodes)
			used, inodes = used+l.Bytes, inodes+l.Inodes
		}
		bytes, files := logsOf(s, k.Name)
		k.Logs = part(n.NodeFs, bytes, files)
		used, inodes = used+bytes, inodes+files
	}
	for _, v := range sc.volumeStats(ctx, s.Pod) {
		p.Volumes = append(p.Volumes, v)
		if onDisk(s.Pod, v.Name) {
			used, inodes = used+v.Used, inodes+v.InodesUsed
		}
	}
	p.EphemeralStorage = part(n.NodeFs, used, inodes)
}

// volumesTimeout limits the time to measure the volumes of one pod.
const volumesTimeout = 10 * time.Second

// volumeStats measures the volumes of a pod.
func (sc *Collector) volumeStats(ctx context.Context, pod *corev1.Pod) (out []server.VolumeStats) {
	ctx, cancel := context.WithTimeout(ctx, volumesTimeout)
	defer cancel()
	all, err := sc.Volumes.Usage(ctx, pod)
	if err != nil {
		sc.Log.Debug("volume usage measurement failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
	for _, v := range all {
		if d := fsStatsOf(v.Dir); d != nil {
			d.Used, d.InodesUsed = v.Bytes, v.Inodes
			out = append(out, server.VolumeStats{Name: v.Volume, FsStats: *d})
		}
	}
	return append(out, sc.driverStats(pod)...)
}

// driverStats returns the last usage of a pod's volumes that their CSI drivers have reported.
func (sc *Collector) driverStats(pod *corev1.Pod) (out []server.VolumeStats) {
	if sc.CSIStats == nil {
		return nil
	}
	specNames := sc.Volumes.CSIVolumes(pod)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		s, ok := sc.CSIStats(pod.UID, specNames[v.Name])
		if specNames[v.Name] == "" || !ok {
			continue
		}
		stats := server.VolumeStats{Name: v.Name, Claim: podspec.ClaimName(pod, v), FsStats: server.FsStats{
			Timestamp: s.At, Capacity: s.Capacity, Available: s.Available, Used: s.Used,
			Inodes: s.Inodes, InodesFree: s.InodesFree, InodesUsed: s.InodesUsed,
		}}
		if s.Condition != nil {
			stats.Abnormal = &s.Condition.Abnormal
		}
		out = append(out, stats)
	}
	return out
}

// ClaimStats is the usage of the volume of a PersistentVolumeClaim.
type ClaimStats struct {
	Namespace, Claim string
	Abnormal         *bool // health of the volume; nil: not known
	server.FsStats
}

// ClaimStats returns the last usage of the volumes of claims, each claim once.
func (sc *Collector) ClaimStats() (out []ClaimStats) {
	seen := map[types.NamespacedName]bool{}
	for _, s := range sc.Pods() {
		for _, v := range sc.driverStats(s.Pod) {
			claim := types.NamespacedName{Namespace: s.Pod.Namespace, Name: v.Claim}
			if v.Claim != "" && !seen[claim] {
				seen[claim] = true
				out = append(out, ClaimStats{claim.Namespace, claim.Name, v.Abnormal, v.FsStats})
			}
		}
	}
	return out
}

// onDisk reports whether the content of a volume is on the node's disk and counts as ephemeral
// storage, as upstream. Other volumes with content of the API server are in memory there.
func onDisk(pod *corev1.Pod, volume string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == volume &&
			(v.ConfigMap != nil || v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault)
	})
}

// logsOf measures the logs of a container, including rotated ones.
func logsOf(s *status.Snapshot, container string) (bytes, files uint64) {
	for _, k := range s.Observed.Containers {
		if k.Name != container || k.LogPath == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Dir(k.LogPath))
		if err != nil {
			return 0, 0
		}
		for _, e := range entries {
			if st, err := e.Info(); err == nil && st.Mode().Type() == fs.FileMode(0) {
				bytes, files = bytes+uint64(st.Size()), files+1
			}
		}
		return bytes, files
	}
	return 0, 0
}
