package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// firstWindow is the measurement window for CPU usage rates without a recent earlier request.
// Otherwise the window is the time since that request.
const (
	firstWindow  = 500 * time.Millisecond
	minWindow    = 400 * time.Millisecond
	maxSampleAge = 5 * time.Minute // older samples are not used
)

// summary serves /stats/summary. With only_cpu_and_memory, file systems are not measured.
func (s *server) summary(w http.ResponseWriter, r *http.Request) {
	only, _ := flag(r.URL.Query().Get("only_cpu_and_memory"))
	f, err := s.measure(r.Context(), !only)
	if err != nil {
		writeError(w, err)
		return
	}
	rate := s.rates.update(f)
	out := stats.Summary{Node: nodeStats(f.Node, rate, only), Pods: make([]stats.PodStats, 0, len(f.Pods))}
	for _, p := range f.Pods {
		out.Pods = append(out.Pods, podStats(p, rate, only))
	}
	writeJSON(w, out)
}

// measure collects stats, twice if there is no recent sample to compute rates from.
func (s *server) measure(ctx context.Context, disks bool) (Stats, error) {
	if !s.rates.hasRecent(time.Now()) {
		f, err := s.h.Stats(ctx, false)
		if err != nil {
			return f, err
		}
		s.rates.update(f)
		wait := time.NewTimer(firstWindow)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
	return s.h.Stats(ctx, disks)
}

// cpuRates computes CPU usage rates between requests.
type cpuRates struct {
	mu   sync.Mutex
	last map[string]cpuSample
	at   time.Time
}

type cpuSample struct {
	at    time.Time
	cpu   time.Duration
	nanos uint64 // nanoseconds per second
	known bool
}

func (r *cpuRates) hasRecent(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Sub(r.at) < maxSampleAge
}

// update stores a new sample and returns the CPU usage of a cgroup in nanocores, by its path; nil:
// unknown.
func (r *cpuRates) update(f Stats) func(cgroup string) *uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]cpuSample{}
	take := func(cgroup string, u Usage) {
		if u.Timestamp.IsZero() {
			return
		}
		previous, known := r.last[cgroup]
		next := cpuSample{at: u.Timestamp, cpu: u.CPU}
		switch elapsed := u.Timestamp.Sub(previous.at); {
		case !known || u.CPU < previous.cpu || elapsed >= maxSampleAge: // a new cgroup of the same name
		case elapsed < minWindow:
			next = previous
		default:
			next.nanos, next.known = uint64(float64(u.CPU-previous.cpu)/elapsed.Seconds()), true
		}
		now[cgroup] = next
	}
	take("/", f.Node.Usage)
	for _, p := range f.Pods {
		take(p.Cgroup, p.Usage)
		for _, k := range p.Containers {
			take(k.Cgroup, k.Usage)
		}
	}
	r.last, r.at = now, f.Node.Usage.Timestamp
	return func(cgroup string) *uint64 {
		u, ok := now[cgroup]
		if !ok || !u.known {
			return nil
		}
		return &u.nanos
	}
}

func nodeStats(n NodeStats, rate func(string) *uint64, only bool) stats.NodeStats {
	out := stats.NodeStats{
		NodeName: n.Name, StartTime: metav1.NewTime(n.Started), SystemContainers: []stats.ContainerStats{},
		CPU: cpuStats(n.Usage, rate("/")), Memory: memoryStats(n.Usage),
		Swap: &stats.SwapStats{
			Time:               metav1.NewTime(n.Usage.Timestamp),
			SwapUsageBytes:     &n.Swap.Used,
			SwapAvailableBytes: &n.Swap.Free,
		},
	}
	if free := n.Memory - min(n.Usage.WorkingSet, n.Memory); out.Memory != nil {
		out.Memory.AvailableBytes = &free
	}
	if only {
		return out
	}
	out.IO = ioStats(n.Usage)
	out.Network = networkStats(n.Interfaces, n.Usage.Timestamp)
	out.Fs = fsStats(n.NodeFs)
	out.Runtime = &stats.RuntimeStats{ImageFs: fsStats(n.ImageFs), ContainerFs: fsStats(n.ImageFs)}
	out.Rlimit = &stats.RlimitStats{
		Time:                  metav1.NewTime(n.Usage.Timestamp),
		MaxPID:                &n.MaxPID,
		NumOfRunningProcesses: &n.Processes,
	}
	return out
}

func podStats(p PodStats, rate func(string) *uint64, only bool) stats.PodStats {
	out := stats.PodStats{
		PodRef:    stats.PodReference{Name: p.Name, Namespace: p.Namespace, UID: p.UID},
		StartTime: metav1.NewTime(p.Started), Containers: make([]stats.ContainerStats, 0, len(p.Containers)),
		CPU: cpuStats(p.Usage, rate(p.Cgroup)), Memory: memoryStats(p.Usage), Swap: swapStats(p.Usage),
	}
	for _, k := range p.Containers {
		c := stats.ContainerStats{
			Name: k.Name, StartTime: metav1.NewTime(k.Started),
			CPU: cpuStats(k.Usage, rate(k.Cgroup)), Memory: memoryStats(k.Usage), Swap: swapStats(k.Usage),
		}
		if !only {
			c.IO, c.Rootfs, c.Logs = ioStats(k.Usage), fsStats(k.Rootfs), fsStats(k.Logs)
		}
		out.Containers = append(out.Containers, c)
	}
	if only {
		return out
	}
	out.IO = ioStats(p.Usage)
	out.Network = networkStats(p.Interfaces, p.Usage.Timestamp)
	out.EphemeralStorage = fsStats(p.EphemeralStorage)
	out.ProcessStats = &stats.ProcessStats{ProcessCount: &p.Usage.Processes}
	for _, v := range p.Volumes {
		s := stats.VolumeStats{Name: v.Name, FsStats: *fsStats(&v.FsStats)}
		if v.Claim != "" {
			s.PVCRef = &stats.PVCReference{Name: v.Claim, Namespace: p.Namespace}
		}
		out.VolumeStats = append(out.VolumeStats, s)
	}
	return out
}

func cpuStats(u Usage, rate *uint64) *stats.CPUStats {
	if u.Timestamp.IsZero() {
		return nil
	}
	used := uint64(u.CPU)
	out := &stats.CPUStats{Time: metav1.NewTime(u.Timestamp), UsageCoreNanoSeconds: &used, UsageNanoCores: rate}
	if u.PSI != nil {
		out.PSI = psi(u.PSI.CPU)
	}
	return out
}

func memoryStats(u Usage) *stats.MemoryStats {
	if u.Timestamp.IsZero() {
		return nil
	}
	out := &stats.MemoryStats{
		Time: metav1.NewTime(u.Timestamp), UsageBytes: &u.Memory, WorkingSetBytes: &u.WorkingSet, RSSBytes: &u.RSS,
		PageFaults: &u.Faults, MajorPageFaults: &u.MajorFaults,
	}
	if u.MemoryLimit > 0 {
		free := u.MemoryLimit - min(u.WorkingSet, u.MemoryLimit)
		out.AvailableBytes = &free
	}
	if u.PSI != nil {
		out.PSI = psi(u.PSI.Memory)
	}
	return out
}

func swapStats(u Usage) *stats.SwapStats {
	if u.Timestamp.IsZero() {
		return nil
	}
	return &stats.SwapStats{Time: metav1.NewTime(u.Timestamp), SwapUsageBytes: &u.Swap}
}

func ioStats(u Usage) *stats.IOStats {
	if u.Timestamp.IsZero() || u.PSI == nil {
		return nil
	}
	return &stats.IOStats{Time: metav1.NewTime(u.Timestamp), PSI: psi(u.PSI.IO)}
}

func psi(s PSIStats) *stats.PSIStats {
	one := func(t PSIData) stats.PSIData {
		return stats.PSIData{Total: uint64(t.Total), Avg10: t.Avg10, Avg60: t.Avg60, Avg300: t.Avg300}
	}
	return &stats.PSIStats{Some: one(s.Some), Full: one(s.Full)}
}

// networkStats also reports the default interface separately.
func networkStats(all []Interface, at time.Time) *stats.NetworkStats {
	if len(all) == 0 {
		return nil
	}
	out := &stats.NetworkStats{Time: metav1.NewTime(at)}
	for _, i := range all {
		one := stats.InterfaceStats{
			Name:     i.Name,
			RxBytes:  &i.RxBytes,
			RxErrors: &i.RxErrors,
			TxBytes:  &i.TxBytes,
			TxErrors: &i.TxErrors,
		}
		out.Interfaces = append(out.Interfaces, one)
		if i.Name == "eth0" || out.Name == "" {
			out.InterfaceStats = one
		}
	}
	return out
}

func fsStats(d *FsStats) *stats.FsStats {
	if d == nil {
		return nil
	}
	return &stats.FsStats{
		Time: metav1.NewTime(d.Timestamp), AvailableBytes: &d.Available, CapacityBytes: &d.Capacity, UsedBytes: &d.Used,
		InodesFree: &d.InodesFree, Inodes: &d.Inodes, InodesUsed: &d.InodesUsed,
	}
}
