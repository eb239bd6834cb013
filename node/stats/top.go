package stats

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/status"
	"berth/node/cgroups"
	"berth/nodeapi"
)

// Top measures the usage of pods by reading their cgroups twice.
func (sc *Collector) Top(ctx context.Context, chosen nodeapi.PodFilter, window time.Duration) (nodeapi.Top, error) {
	ids := map[types.UID][]string{}
	var pods []*status.Snapshot
	for _, s := range sc.Pods() {
		if !chosen(s.Pod) {
			continue
		}
		pods = append(pods, s)
		ids[s.Pod.UID] = nil
		for _, k := range s.Observed.Containers {
			if k.State == plan.Running {
				ids[s.Pod.UID] = append(ids[s.Pod.UID], k.ID)
			}
		}
	}
	before, after, err := sc.Cgroups.UsageOver(ctx, ids, window)
	if err != nil {
		return nodeapi.Top{}, err
	}
	out := nodeapi.Top{At: time.Now(), Window: window, Pods: []nodeapi.PodTop{}}
	for _, s := range pods {
		was, now := before[s.Pod.UID], after[s.Pod.UID]
		if now.Pod.At.IsZero() {
			continue // the pod has no cgroup
		}
		p := nodeapi.PodTop{
			Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: string(s.Pod.UID),
			Resources: resourcesOf(was.Pod, now.Pod), Containers: []nodeapi.ContainerTop{},
		}
		for _, k := range s.Observed.Containers {
			if u, there := now.Containers[k.ID]; there {
				p.Containers = append(
					p.Containers,
					nodeapi.ContainerTop{Name: k.Name, ID: k.ID, Resources: resourcesOf(was.Containers[k.ID], u)},
				)
			}
		}
		out.Pods = append(out.Pods, p)
	}
	return out, nil
}

func resourcesOf(was, now cgroups.Usage) nodeapi.Resources {
	cpu, read, write := cgroups.UsageRate(was, now)
	r := nodeapi.Resources{
		CPUNanoCores: uint64(
			cpu * 1e9,
		), CPUNanoSeconds: uint64(now.CPU), MemoryBytes: now.Memory, WorkingSetBytes: now.WorkingSet,
		ReadBytesPerSecond: read, WriteBytesPerSecond: write, IOUnavailable: now.IOUnavailable,
		Processes: now.Processes,
	}
	if p := now.Pressure; p != nil {
		r.PSI = &nodeapi.PSI{CPU: p.CPU, Memory: p.Memory, IO: p.IO}
	}
	return r
}
