package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// firstWindow is over what the use of CPUs is measured when nobody has asked
// before; else it is over the time since.
const (
	firstWindow = 500 * time.Millisecond
	leastWindow = 400 * time.Millisecond
	oldWindow   = 5 * time.Minute // longer ago is not now
)

// summary tells the figures of /stats/summary. With only_cpu_and_memory the disks
// are not looked at.
func (s *server) summary(w http.ResponseWriter, r *http.Request) {
	only, _ := flag(r.URL.Query().Get("only_cpu_and_memory"))
	f, err := s.twice(r.Context(), !only)
	if err != nil {
		complain(w, err)
		return
	}
	rate := s.rates.of(f)
	out := stats.Summary{Node: nodeStats(f.Node, rate, only), Pods: make([]stats.PodStats, 0, len(f.Pods))}
	for _, p := range f.Pods {
		out.Pods = append(out.Pods, podStats(p, rate, only))
	}
	tell(w, out)
}

// twice measures, and a moment before too if nothing is remembered.
func (s *server) twice(ctx context.Context, disks bool) (Figures, error) {
	if !s.rates.fresh(time.Now()) {
		f, err := s.h.Figures(ctx, false)
		if err != nil {
			return f, err
		}
		s.rates.of(f)
		wait := time.NewTimer(firstWindow)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
	return s.h.Figures(ctx, disks)
}

// rates remembers what was used when somebody asked last.
type rates struct {
	mu   sync.Mutex
	last map[string]usedAt
	at   time.Time
}

type usedAt struct {
	at    time.Time
	cpu   time.Duration
	nanos uint64 // per second, when it was measured
	known bool
}

func (r *rates) fresh(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.at) < oldWindow
}

// of takes in new figures and returns how many nanoseconds of CPU per second a
// cgroup uses, by its path; nil: not known yet.
func (r *rates) of(f Figures) func(cgroup string) *uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]usedAt{}
	take := func(cgroup string, u Use) {
		if u.At.IsZero() {
			return
		}
		was, known := r.last[cgroup]
		next := usedAt{at: u.At, cpu: u.CPU}
		switch passed := u.At.Sub(was.at); {
		case !known || u.CPU < was.cpu || passed >= oldWindow: // a cgroup of that name, but another
		case passed < leastWindow:
			next = was
		default:
			next.nanos, next.known = uint64(float64(u.CPU-was.cpu)/passed.Seconds()), true
		}
		now[cgroup] = next
	}
	take("/", f.Node.Use)
	for _, p := range f.Pods {
		take(p.Cgroup, p.Use)
		for _, k := range p.Containers {
			take(k.Cgroup, k.Use)
		}
	}
	r.last, r.at = now, f.Node.Use.At
	return func(cgroup string) *uint64 {
		u, ok := now[cgroup]
		if !ok || !u.known {
			return nil
		}
		return &u.nanos
	}
}

func nodeStats(n NodeFigures, rate func(string) *uint64, only bool) stats.NodeStats {
	out := stats.NodeStats{
		NodeName: n.Name, StartTime: metav1.NewTime(n.Started), SystemContainers: []stats.ContainerStats{},
		CPU: cpuStats(n.Use, rate("/")), Memory: memoryStats(n.Use),
		Swap: &stats.SwapStats{Time: metav1.NewTime(n.Use.At), SwapUsageBytes: &n.Swap.Used, SwapAvailableBytes: &n.Swap.Free},
	}
	if free := n.Memory - min(n.Use.WorkingSet, n.Memory); out.Memory != nil {
		out.Memory.AvailableBytes = &free
	}
	if only {
		return out
	}
	out.IO = ioStats(n.Use)
	out.Network = networkStats(n.Interfaces, n.Use.At)
	out.Fs = fsStats(n.Disk)
	out.Runtime = &stats.RuntimeStats{ImageFs: fsStats(n.Images), ContainerFs: fsStats(n.Images)}
	out.Rlimit = &stats.RlimitStats{Time: metav1.NewTime(n.Use.At), MaxPID: &n.MaxPID, NumOfRunningProcesses: &n.Processes}
	return out
}

func podStats(p PodFigures, rate func(string) *uint64, only bool) stats.PodStats {
	out := stats.PodStats{
		PodRef:    stats.PodReference{Name: p.Name, Namespace: p.Namespace, UID: p.UID},
		StartTime: metav1.NewTime(p.Started), Containers: make([]stats.ContainerStats, 0, len(p.Containers)),
		CPU: cpuStats(p.Use, rate(p.Cgroup)), Memory: memoryStats(p.Use), Swap: swapStats(p.Use),
	}
	for _, k := range p.Containers {
		c := stats.ContainerStats{
			Name: k.Name, StartTime: metav1.NewTime(k.Started),
			CPU: cpuStats(k.Use, rate(k.Cgroup)), Memory: memoryStats(k.Use), Swap: swapStats(k.Use),
		}
		if !only {
			c.IO, c.Rootfs, c.Logs = ioStats(k.Use), fsStats(k.Root), fsStats(k.Logs)
		}
		out.Containers = append(out.Containers, c)
	}
	if only {
		return out
	}
	out.IO = ioStats(p.Use)
	out.Network = networkStats(p.Interfaces, p.Use.At)
	out.EphemeralStorage = fsStats(p.Ephemeral)
	out.ProcessStats = &stats.ProcessStats{ProcessCount: &p.Use.Processes}
	for _, v := range p.Volumes {
		out.VolumeStats = append(out.VolumeStats, stats.VolumeStats{Name: v.Name, FsStats: *fsStats(&v.Disk)})
	}
	return out
}

func cpuStats(u Use, rate *uint64) *stats.CPUStats {
	if u.At.IsZero() {
		return nil
	}
	used := uint64(u.CPU)
	out := &stats.CPUStats{Time: metav1.NewTime(u.At), UsageCoreNanoSeconds: &used, UsageNanoCores: rate}
	if u.Pressure != nil {
		out.PSI = psi(u.Pressure.CPU)
	}
	return out
}

func memoryStats(u Use) *stats.MemoryStats {
	if u.At.IsZero() {
		return nil
	}
	out := &stats.MemoryStats{
		Time: metav1.NewTime(u.At), UsageBytes: &u.Memory, WorkingSetBytes: &u.WorkingSet, RSSBytes: &u.RSS,
		PageFaults: &u.Faults, MajorPageFaults: &u.MajorFaults,
	}
	if u.MemoryLimit > 0 {
		free := u.MemoryLimit - min(u.WorkingSet, u.MemoryLimit)
		out.AvailableBytes = &free
	}
	if u.Pressure != nil {
		out.PSI = psi(u.Pressure.Memory)
	}
	return out
}

func swapStats(u Use) *stats.SwapStats {
	if u.At.IsZero() {
		return nil
	}
	return &stats.SwapStats{Time: metav1.NewTime(u.At), SwapUsageBytes: &u.Swap}
}

func ioStats(u Use) *stats.IOStats {
	if u.At.IsZero() || u.Pressure == nil {
		return nil
	}
	return &stats.IOStats{Time: metav1.NewTime(u.At), PSI: psi(u.Pressure.IO)}
}

func psi(s Stall) *stats.PSIStats {
	one := func(t StallTime) stats.PSIData {
		return stats.PSIData{Total: uint64(t.Total), Avg10: t.Avg10, Avg60: t.Avg60, Avg300: t.Avg300}
	}
	return &stats.PSIStats{Some: one(s.Some), Full: one(s.Full)}
}

// networkStats has the default interface by itself too.
func networkStats(all []Interface, at time.Time) *stats.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	out := &stats.NetworkStats{Time: metav1.NewTime(at)}
	for _, i := range all {
		one := stats.InterfaceStats{Name: i.Name, RxBytes: &i.RxBytes, RxErrors: &i.RxErrors, TxBytes: &i.TxBytes, TxErrors: &i.TxErrors}
		out.Interfaces = append(out.Interfaces, one)
		if i.Name == "eth0" || out.Name == "" {
			out.InterfaceStats = one
		}
	}
	return out
}

func fsStats(d *Disk) *stats.FsStats {
	if d == nil {
		return nil
	}
	return &stats.FsStats{
		Time: metav1.NewTime(d.At), AvailableBytes: &d.Available, CapacityBytes: &d.Capacity, UsedBytes: &d.Used,
		InodesFree: &d.InodesFree, Inodes: &d.Inodes, InodesUsed: &d.InodesUsed,
	}
}
