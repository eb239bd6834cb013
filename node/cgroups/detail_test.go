package cgroups

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// writeFiles writes the files of a cgroup below the mount of a hierarchy.
func writeFiles(t *testing.T, mount, dir string, files map[string]string) {
	t.Helper()
	at := filepath.Join(mount, dir)
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDetails(t *testing.T) {
	t.Parallel()
	const uid, id = "11111111-2222-3333-4444-555555555555", "abc"
	pod := "kubepods/burstable/pod" + uid
	pressure := "some avg10=1.50 avg60=2.00 avg300=3.00 total=4000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=5\n"
	v2 := map[string]string{
		"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnr_periods " +
			"10\nnr_throttled 4\nthrottled_usec 500\n",
		"memory.current":      "1000\n",
		"memory.peak":         "2000\n",
		"memory.swap.current": "7\n",
		"memory.max":          "4096\n",
		"memory.stat":         "anon 300\nfile 600\nfile_mapped 50\ninactive_file 400\npgfault 11\npgmajfault 2\n",
		"memory.events":       "oom 1\noom_kill 1\n",
		"cpu.max":             "50000 100000\n",
		"cpu.weight":          "39\n",
		"io.stat":             "8:99999 rbytes=5 wbytes=6 rios=1 wios=2 dbytes=0 dios=0\n",
		"cpu.pressure":        pressure,
		"cgroup.procs":        "41\n42\n",
		"cgroup.threads":      "41\n42\n43\n",
	}
	want := Detail{
		Usage: Usage{
			CPU:        3 * time.Second,
			Memory:     1000,
			WorkingSet: 600,
			ReadBytes:  5,
			WriteBytes: 6,
			Processes:  2,
			Pressure:   &Pressure{CPU: 1.5},
		},
		Path:          "/" + pod + "/" + id,
		User:          2 * time.Second,
		System:        time.Second,
		Periods:       10,
		Throttled:     4,
		ThrottledTime: 500 * time.Microsecond,
		RSS:           300,
		Cache:         600,
		Mapped:        50,
		Peak:          2000,
		Swap:          7,
		Faults:        11,
		MajorFaults:   2,
		OOMKills:      1,
		Devices:       []Device{{Name: "8:99999", ReadBytes: 5, WriteBytes: 6, ReadOps: 1, WriteOps: 2}},
		Threads:       3,
		PID:           41,
		Quota:         50 * time.Millisecond,
		Period:        100 * time.Millisecond,
		Shares:        998,
		MemoryLimit:   4096,
		PSI: &PSI{
			CPU: PSIStats{
				Some: PSIData{Avg10: 1.5, Avg60: 2, Avg300: 3, Total: 4 * time.Millisecond},
				Full: PSIData{Avg10: 0.5, Total: 5 * time.Microsecond},
			},
		},
	}
	check := func(name string, m machine, want Detail) {
		t.Helper()
		c, err := newCgroups(m, Options{Driver: driverCgroupfs})
		if err != nil {
			t.Fatal(err)
		}
		all, err := c.Details(
			context.Background(),
			map[types.UID][]string{uid: {id, "gone"}, "66666666-2222-3333-4444-555555555555": nil},
		)
		if err != nil || len(all) != 1 || len(all[uid].Containers) != 1 {
			t.Fatalf("%s: %v, %+v", name, err, all)
		}
		got := all[uid].Containers[id]
		if got.At.IsZero() {
			t.Errorf("%s: the reading has no time", name)
		}
		got.At = time.Time{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	root := t.TempDir()
	writeFiles(t, root, pod+"/"+id, v2)
	check(
		"v2",
		machine{
			v2: true,
			hierarchies: []hierarchy{{mount: root, unified: true, controllers: []string{"cpu", "memory", "io"},
				mkdir: mkdir}},
		},
		want,
	)

	cpu, memory, blkio := t.TempDir(), t.TempDir(), t.TempDir()
	writeFiles(t, cpu, pod+"/"+id, map[string]string{
		"cpuacct.usage":     "3000000000\n",
		"cpuacct.stat":      "user 200\nsystem 100\n",
		"cpu.stat":          "nr_periods 10\nnr_throttled 4\nthrottled_time 500000\n",
		"cpu.shares":        "998\n",
		"cpu.cfs_quota_us":  "50000\n",
		"cpu.cfs_period_us": "100000\n",
		"cgroup.procs":      "41\n42\n",
		"tasks":             "41\n42\n43\n",
	})
	writeFiles(t, memory, pod+"/"+id, map[string]string{
		"memory.usage_in_bytes":     "1000\n",
		"memory.max_usage_in_bytes": "2000\n",
		"memory.limit_in_bytes":     "4096\n",
		"memory.stat": "total_rss 300\ntotal_cache 600\ntotal_mapped_file 50\ntotal_inactive_file " +
			"400\ntotal_swap 7\ntotal_pgfault 11\ntotal_pgmajfault 2\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"cgroup.procs":       "41\n",
		"tasks":              "41\n",
	})
	writeFiles(t, blkio, pod+"/"+id, map[string]string{
		"blkio.throttle.io_service_bytes_recursive": "8:99999 Read 5\n8:99999 Write 6\n8:99999 Total 11\nTotal 11\n",
		"blkio.throttle.io_serviced":                "8:99999 Read 1\n8:99999 Write 2\n", "cgroup.procs": "",
		"tasks": "",
	})
	want.Pressure, want.PSI = nil, nil
	check("v1", machine{hierarchies: []hierarchy{
		{
			mount:       cpu,
			controllers: []string{"cpu", "cpuacct"},
			mkdir:       mkdir,
		},
		{mount: memory, controllers: []string{"memory"}, mkdir: mkdir},
		{mount: blkio, controllers: []string{"blkio"}, mkdir: mkdir},
	}}, want)
	writeFiles(t, memory, pod+"/"+id, map[string]string{"memory.limit_in_bytes": "9223372036854771712\n"})
	writeFiles(t, cpu, pod+"/"+id, map[string]string{"cpu.cfs_quota_us": "-1\n"})
	want.MemoryLimit, want.Quota, want.Period = 0, 0, 100*time.Millisecond
	check("v1 without limits", machine{hierarchies: []hierarchy{
		{
			mount:       cpu,
			controllers: []string{"cpu", "cpuacct"},
			mkdir:       mkdir,
		},
		{mount: memory, controllers: []string{"memory"}, mkdir: mkdir},
		{mount: blkio, controllers: []string{"blkio"}, mkdir: mkdir},
	}}, want)
}
