package server

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// measured are the stats of a node with one pod. Each call adds one second of CPU time.
func measured(at *time.Time, cpu *time.Duration) func(context.Context, bool) (Stats, error) {
	return func(_ context.Context, disks bool) (Stats, error) {
		use := Usage{Timestamp: *at, CPU: *cpu, WorkingSet: 10 << 20, RSS: 5 << 20, Memory: 12 << 20, Processes: 2}
		*at, *cpu = at.Add(2*time.Second), *cpu+time.Second
		k := ContainerStats{
			Name:    `odd"name\`,
			ID:      "c1",
			Image:   "docker.io/library/nginx:1",
			Started: time.Unix(1000, 5e8),
			Cgroup:  "/kubepods/pod1/c1",
			Usage:   use,
		}
		k.Usage.CPULimit, k.Usage.MemoryLimit = &CPULimit{
			Quota:  50 * time.Millisecond,
			Period: 100 * time.Millisecond,
		}, 32<<20
		k.Usage.Faults, k.Usage.MajorFaults = 70, 7
		k.Usage.PSI = &PSI{CPU: PSIStats{Some: PSIData{Total: 1500 * time.Millisecond}}}
		k.Usage.Devices = []Device{{Name: "/dev/sda", ReadBytes: 7, WriteBytes: 8, ReadOps: 1, WriteOps: 2}}
		p := PodStats{
			Namespace: "ns", Name: "p", UID: "u", Started: time.Unix(900, 0), Cgroup: "/kubepods/pod1", Usage: use,
			Sandbox: "s1", SandboxCgroup: "/kubepods/pod1/s1",
			Interfaces: []Interface{{Name: "eth0", RxBytes: 3, TxBytes: 4}}, Containers: []ContainerStats{k},
		}
		n := NodeStats{
			Name:       "node1",
			Started:    time.Unix(1, 0),
			CPUs:       2,
			Memory:     1 << 30,
			Usage:      use,
			Interfaces: []Interface{{Name: "eth0", RxBytes: 30}},
			Swap:       Swap{Used: 1 << 20, Free: 3 << 20},
		}
		if disks {
			p.EphemeralStorage = &FsStats{Timestamp: use.Timestamp, Used: 9}
			p.Volumes = []VolumeStats{{Name: "data", FsStats: FsStats{Timestamp: use.Timestamp, Used: 4}}}
		}
		return Stats{Node: n, Pods: []PodStats{p}}, nil
	}
}

func TestMetricsHaveCadvisorNamesAndLabels(t *testing.T) {
	t.Parallel()
	at, cpu := time.Unix(5000, 0), time.Hour
	w := serve(t, func(o *Options) { o.Handlers.Stats = measured(&at, &cpu) })
	_, page := request(t, w.master(t), "GET", w.url+"/metrics/cadvisor")
	for _, line := range []string{
		`container_cpu_usage_seconds_total{container="odd\"name\\",cpu="total",id="/kubepods/pod1/c1",` +
			`image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p"} 3600 5000000`,
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} ` +
			`3600 5000000`,
		`container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/pod1",` +
			`image="",name="",namespace="ns",pod="p"} 3600 5000000`,
		`container_memory_working_set_bytes{container="odd\"name\\",id="/kubepods/pod1/c1",` +
			`image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p"} 1.048576e+07 5000000`,
		`container_network_receive_bytes_total{container="",id="/kubepods/pod1/s1",` +
			`image="",interface="eth0",name="s1",namespace="ns",pod="p"} 3 5000000`,
		`container_network_receive_bytes_total{container="",id="/",image="",` +
			`interface="eth0",name="",namespace="",pod=""} 30 5000000`,
		`container_fs_writes_bytes_total{container="odd\"name\\",device="/dev/sda",id="/kubepods/pod1/c1",` +
			`image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p"} 8 5000000`,
		`container_spec_cpu_quota{container="odd\"name\\",id="/kubepods/pod1/c1",` +
			`image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p"} 50000 5000000`,
		`machine_cpu_cores 2`, `machine_swap_bytes 4.194304e+06`,
		`container_pressure_cpu_waiting_seconds_total{container="odd\"name\\",id="/kubepods/pod1/c1",` +
			`image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p"} 1.5 5000000`,
		`container_memory_failures_total{container="odd\"name\\",failure_type="pgmajfault",` +
			`id="/kubepods/pod1/c1",image="docker.io/library/nginx:1",name="c1",namespace="ns",pod="p",` +
			`scope="hierarchy"} 7 5000000`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("missing %s\n%s", line, page)
		}
	}
	if strings.Contains(page, `container_pressure_cpu_waiting_seconds_total{container="",id="/"`) {
		t.Error("a cgroup without pressure stall information has pressure metrics")
	}
	_, resource := request(t, w.master(t), "GET", w.url+"/metrics/resource")
	for _, line := range []string{
		`container_cpu_usage_seconds_total{container="odd\"name\\",namespace="ns",pod="p"} 3601 5002000`,
		`container_start_time_seconds{container="odd\"name\\",namespace="ns",pod="p"} 1000.5 5002000`,
		`pod_memory_working_set_bytes{namespace="ns",pod="p"} 1.048576e+07 5002000`,
		`node_cpu_usage_seconds_total 3601 5002000`, `scrape_error 0`,
	} {
		if !strings.Contains(resource, line+"\n") {
			t.Errorf("missing %s\n%s", line, resource)
		}
	}
	for _, text := range []string{page, resource} {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
			t.Error(err)
		}
	}
}

func TestSummaryMeasuresBetweenRequests(t *testing.T) {
	t.Parallel()
	at, cpu := time.Now().Add(-time.Hour), time.Hour // rates use the timestamps of the stats, not the clock
	w := serve(t, func(o *Options) { o.Handlers.Stats = measured(&at, &cpu) })
	var s stats.Summary
	for range 2 {
		code, body := request(t, w.master(t), "GET", w.url+"/stats/summary")
		if err := json.Unmarshal([]byte(body), &s); code != 200 || err != nil {
			t.Fatal(code, err)
		}
		p := s.Pods[0]
		for name, rate := range map[string]*uint64{
			"node": s.Node.CPU.UsageNanoCores, "pod": p.CPU.UsageNanoCores,
			"container": p.Containers[0].CPU.UsageNanoCores,
		} {
			if rate == nil || *rate != 5e8 {
				t.Errorf("%s: %v", name, rate)
			}
		}
		if *s.Node.Memory.AvailableBytes != 1<<30-10<<20 || *p.Containers[0].Memory.AvailableBytes != 22<<20 ||
			*p.Network.RxBytes != 3 ||
			p.EphemeralStorage == nil ||
			*p.EphemeralStorage.UsedBytes != 9 ||
			len(p.VolumeStats) != 1 ||
			p.VolumeStats[0].Name != "data" ||
			*p.VolumeStats[0].UsedBytes != 4 {
			t.Errorf("%s", body)
		}
	}
	_, body := request(t, w.master(t), "GET", w.url+"/stats/summary?only_cpu_and_memory=true")
	s = stats.Summary{}
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Pods[0].Network != nil ||
		s.Pods[0].EphemeralStorage != nil ||
		s.Pods[0].VolumeStats != nil ||
		s.Pods[0].CPU == nil {
		t.Errorf("%v %s", err, body)
	}
}
