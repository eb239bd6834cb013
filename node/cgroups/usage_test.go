package cgroups

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const usageUID = types.UID("11111111-2222-3333-4444-555555555555")

// fill creates cgroup directories with files below a mount point.
func fill(t *testing.T, mount string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(mount, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func usageOf(t *testing.T, m machine, driver string, ids ...string) PodUsage {
	t.Helper()
	if driver == driverSystemd {
		m.units = &bus{}
	}
	c, err := newCgroups(m, Options{Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Usage(t.Context(), map[types.UID][]string{usageUID: ids, "no-such-pod": nil})
	if err != nil {
		t.Fatal(err)
	}
	u, ok := all[usageUID]
	if !ok || len(all) != 1 {
		t.Fatalf("usage of %v", all)
	}
	return u
}

func TestUsageOnV2(t *testing.T) {
	t.Parallel()
	mount := t.TempDir()
	pod := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice"
	fill(t, mount, map[string]string{
		pod + "/cpu.stat":       "usage_usec 2500000\nuser_usec 1\n",
		pod + "/memory.current": "1000000\n",
		pod + "/memory.stat":    "anon 5\ninactive_file 300000\n",
		pod + "/io.stat": "8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=0 " +
			"dios=0\n8:16 rbytes=11 wbytes=2\n",
		pod + "/cgroup.procs": "",
		pod + "/cpu.pressure": "some avg10=12.50 avg60=0.00 avg300=0.00 total=1\nfull " +
			"avg10=1.00 avg60=0 avg300=0 total=0\n",
		pod + "/memory.pressure":                       "some avg10=0.25 avg60=0.00 avg300=0.00 total=1\n",
		pod + "/io.pressure":                           "some avg10=3.00 avg60=0.00 avg300=0.00 total=1\n",
		pod + "/cri-containerd-abc.scope/procs":        "",
		pod + "/cri-containerd-abc.scope/cpu.stat":     "usage_usec 400\n",
		pod + "/cri-containerd-abc.scope/cgroup.procs": "7\n8\n",
	})
	m := machine{v2: true, hierarchies: []hierarchy{{mount: mount, unified: true}}}
	u := usageOf(t, m, driverSystemd, "abc", "gone", "../escape")
	if p := u.Pod; p.CPU != 2500*time.Millisecond || p.Memory != 1000000 || p.WorkingSet != 700000 ||
		p.ReadBytes != 111 ||
		p.WriteBytes != 22 ||
		p.Processes != 2 {
		t.Errorf("pod %+v", p)
	}
	if p := u.Pod.Pressure; p == nil || *p != (Pressure{CPU: 12.5, Memory: 0.25, IO: 3}) {
		t.Errorf("pressure %+v", p)
	}
	if k := u.Containers["abc"]; len(u.Containers) != 1 || k.CPU != 400*time.Microsecond || !k.IOUnavailable ||
		u.Pod.IOUnavailable ||
		k.Processes != 2 ||
		k.Pressure != nil {
		t.Errorf("containers %+v", u.Containers)
	}
}

func TestUsageOnV1(t *testing.T) {
	t.Parallel()
	mount := t.TempDir()
	pod := "kubepods/pod" + string(usageUID)
	fill(t, mount, map[string]string{
		"cpu/" + pod + "/cpuacct.usage":            "2500000000\n",
		"cpu/" + pod + "/abc/cpuacct.usage":        "7\n",
		"memory/" + pod + "/abc/cgroup.procs":      "7\n",
		"memory/" + pod + "/memory.usage_in_bytes": "1000\n",
		"memory/" + pod + "/memory.stat":           "inactive_file 1\ntotal_inactive_file 2000\n",
		"blkio/" + pod + "/blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 512\n8:0 Sync " +
			"9\nTotal 4608\n",
		"unified/" + pod + "/cpu.pressure": "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n",
	})
	m := machine{hierarchies: []hierarchy{
		{
			mount:       mount + "/cpu",
			controllers: []string{"cpu", "cpuacct"},
		},
		{mount: mount + "/memory", controllers: []string{"memory"}},
		{mount: mount + "/blkio", controllers: []string{"blkio"}},
		{mount: mount + "/unified", unified: true},
	}}
	u := usageOf(t, m, driverCgroupfs, "abc")
	p := u.Pod
	if p.CPU != 2500*time.Millisecond || p.Memory != 1000 || p.WorkingSet != 0 || p.ReadBytes != 4096 ||
		p.WriteBytes != 512 ||
		p.Processes != 1 {
		t.Errorf("pod %+v", p)
	}
	if p.IOUnavailable || !u.Containers["abc"].IOUnavailable {
		t.Errorf("got I/O accounting of pod %+v, container %+v", p, u.Containers["abc"])
	}
	// A kernel without I/O accounting.
	for text, counts := range map[string]bool{"Total 0\n": false, "8:0 Read 4096\n8:0 Total 4096\nTotal 4096\n": true} {
		fill(t, mount, map[string]string{"blkio/blkio.throttle.io_service_bytes_recursive": text})
		if got := usageOf(t, m, driverCgroupfs, "abc").Pod; got.IOUnavailable == counts {
			t.Errorf("root file %q: got pod %+v", text, got)
		}
	}
	if p.Pressure == nil || p.Pressure.CPU != 1 || u.Containers["abc"].CPU != 7 {
		t.Errorf("pressure %+v, containers %+v", p.Pressure, u.Containers)
	}
}

func TestUsageRate(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	was := Usage{At: at, CPU: time.Second, ReadBytes: 100, WriteBytes: 500}
	now := Usage{At: at.Add(2 * time.Second), CPU: 2 * time.Second, ReadBytes: 300, WriteBytes: 400}
	if cpu, r, w := UsageRate(was, now); cpu != 0.5 || r != 100 || w != 0 {
		t.Errorf("%v CPUs, %v, %v", cpu, r, w)
	}
	if cpu, r, w := UsageRate(Usage{}, now); cpu != 0 || r != 0 || w != 0 {
		t.Errorf("without a first reading: got %v CPUs, %v, %v", cpu, r, w)
	}
}
