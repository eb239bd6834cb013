package cgroups

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// fakeCgroupfs is a directory tree with the files of cgroup v2. Controllers of the root are available
// in every cgroup.
func fakeCgroupfs(t *testing.T, controllers string, lacking ...string) machine {
	t.Helper()
	files := map[string]string{
		"cgroup.controllers": controllers, "cgroup.subtree_control": "", "cgroup.procs": "",
		"cpu.weight": "100", "cpu.max": "max 100000", "memory.max": "max", "memory.swap.max": "max", "pids.max": "max",
		"hugetlb.2MB.max": "max", "memory.min": "0", "memory.low": "0", "memory.high": "max",
	}
	for _, name := range lacking {
		delete(files, name)
	}
	populate := func(dir string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	root := filepath.Join(t.TempDir(), "cgroup")
	if err := populate(root); err != nil {
		t.Fatal(err)
	}
	return machine{
		v2: true, hugePages: []string{"2MB"},
		hierarchies: []hierarchy{{mount: root, unified: true, controllers: strings.Fields(controllers),
			mkdir: populate}},
	}
}

func read(t *testing.T, m machine, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.hierarchies[0].mount, path))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestCgroupV2Files(t *testing.T) {
	t.Parallel()
	m := fakeCgroupfs(t, "cpu io memory pids hugetlb")
	c, err := newCgroups(m, Options{CPUQuota: true, PodPidsLimit: 5})
	if err != nil {
		t.Fatal(err)
	}
	if c.SwapLimits() {
		t.Error("SwapLimits is true without a cgroup")
	}
	pod := podOf(
		"u",
		list("cpu", "1", "memory", "1Mi", "hugepages-2Mi", "2Mi"),
		list("cpu", "2", "memory", "4Mi", "hugepages-2Mi", "2Mi"),
	)
	if err := c.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"kubepods/burstable/podu/cpu.weight":      "100",
		"kubepods/burstable/podu/cpu.max":         "200000 100000",
		"kubepods/burstable/podu/memory.max":      "4194304",
		"kubepods/burstable/podu/pids.max":        "5",
		"kubepods/burstable/podu/hugetlb.2MB.max": "2097152",
		"kubepods/burstable/cpu.weight":           "100",
		// The fake file contains only the last written value.
		"cgroup.subtree_control":                         "+hugetlb",
		"kubepods/cgroup.subtree_control":                "+hugetlb",
		"kubepods/burstable/cgroup.subtree_control":      "+hugetlb",
		"kubepods/burstable/podu/cgroup.subtree_control": "",
	} {
		if got := read(t, m, path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	if !c.SwapLimits() {
		t.Error("SwapLimits is false, want true")
	}
	if sizes := c.HugePageSizes(); len(sizes) != 1 || sizes[0] != "2MB" {
		t.Errorf("got huge page sizes %v", sizes)
	}
}

// TestScenario32_CPUWeightIsTheSameOnEveryLevel checks that a request of one CPU has the weight 100,
// the default of the host's services, for a pod, its tier and all pods together. The older formula of
// runc gives it 39.
func TestScenario32_CPUWeightIsTheSameOnEveryLevel(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ cpu, weight string }{ // weight of a container with this request in runc 1.3.2
		{"50m", "11"}, {"100m", "17"}, {"250m", "35"}, {"500m", "59"}, {"1", "100"}, {"2", "174"}, {"4", "303"},
		{"8", "532"}, {"256", "10000"},
	} {
		m := fakeCgroupfs(t, "cpu memory pids")
		c, err := newCgroups(m, Options{PodsLimit: list("cpu", row.cpu)})
		if err != nil {
			t.Fatal(err)
		}
		least := podOf("b", nil, nil)
		whole := list("cpu", row.cpu, "memory", "1Mi")
		for _, pod := range []*corev1.Pod{podOf("u", list("cpu", row.cpu), nil), podOf("g", whole, whole), least} {
			if err := c.Ensure(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		}
		for path, want := range map[string]string{
			"kubepods": row.weight, "kubepods/burstable": row.weight, "kubepods/burstable/podu": row.weight,
			"kubepods/podg":       row.weight,
			"kubepods/besteffort": "1", "kubepods/besteffort/podb": "1",
		} {
			if got := read(t, m, path+"/cpu.weight"); got != want {
				t.Errorf("%s CPUs: got weight of %s %s, want %s", row.cpu, path, got, want)
			}
		}
	}
}

// TestMemoryProtection checks the memory protection of pods, their tier and all pods together while
// pods are added and removed and the agent restarts. Each row is one step.
func TestMemoryProtection(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	m := fakeCgroupfs(t, "cpu memory pids")
	o := Options{ReserveMemory: true, MemoryThrottlingFactor: 0.9, PodsLimit: list("cpu", "4", "memory", "64Mi")}
	var c *Cgroups
	begin := func(o Options) {
		var err error
		if c, err = newCgroups(m, o); err != nil {
			t.Fatal(err)
		}
	}
	begin(o)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	whole := list("cpu", "1", "memory", "4Mi")
	first, second := podOf("a", list("memory", "1Mi"), list("memory", "2Mi")), podOf("b", list("memory", "3Mi"), nil)
	exact, poor := podOf("g", whole, whole), podOf("p", nil, nil)
	own := podOf("o", list("cpu", "1"), nil)
	own.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory", "1Mi"), Limits: list("memory", "2Mi")}
	for _, step := range []struct {
		sentence      string
		do            func()
		min, low      int // of all pods
		burstable     int // low of the tier
		path, content string
	}{
		{"a Burstable pod is left its request if it can be", func() {
			must(c.Ensure(t.Context(), first))
		}, 0, 1, 1, "burstable/poda/memory.low", fmt.Sprint(mi)},
		{"its limits are its containers': they are slowed down, each by itself", func() {}, 0, 1, 1,
			"burstable/poda/memory.high", "max"},
		{"a second one adds its own", func() {
			must(c.Ensure(t.Context(), second))
		}, 0, 4, 4, "burstable/podb/memory.low", fmt.Sprint(3 * mi)},
		{"a Guaranteed pod gets memory.min", func() {
			must(c.Ensure(t.Context(), exact))
		}, 4, 8, 4, "podg/memory.min", fmt.Sprint(4 * mi)},
		{"a BestEffort one nothing", func() {
			must(c.Ensure(t.Context(), poor))
		}, 4, 8, 4, "besteffort/podp/memory.low", "0"},
		{"a pod with a limit of its own is slowed down as a whole", func() {
			must(c.Ensure(t.Context(), own))
		}, 4, 9, 5, "burstable/podo/memory.high", "1990656"},
		{"a resize counts", func() {
			first.Spec.Containers[0].Resources.Requests = list("memory", "2Mi")
			must(c.Ensure(t.Context(), first))
		}, 4, 10, 6, "burstable/poda/memory.low", fmt.Sprint(2 * mi)},
		{"the memory of a removed pod is released", func() {
			// rmdir fails for directories with fake files
			if err := os.RemoveAll(filepath.Join(m.hierarchies[0].mount, "kubepods/burstable/podb")); err != nil {
				t.Fatal(err)
			}
			must(c.Remove(t.Context(), second))
		}, 4, 7, 3, "memory.max", fmt.Sprint(64 * mi)},
		{"an agent restart keeps the protection of existing pods", func() {
			begin(o)
			for _, pod := range []*corev1.Pod{first, exact} {
				if ok, err := c.Exists(t.Context(), pod); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
		}, 4, 7, 3, "burstable/poda/memory.low", fmt.Sprint(2 * mi)},
		{"nothing is written if disabled", func() {
			begin(Options{PodsLimit: o.PodsLimit})
			must(c.Ensure(t.Context(), podOf("n", list("memory", "5Mi"), nil)))
		}, 4, 7, 3, "burstable/podn/memory.low", "0"},
	} {
		step.do()
		for path, want := range map[string]string{
			"memory.min": fmt.Sprint(step.min * mi), "memory.low": fmt.Sprint(step.low * mi),
			"burstable/memory.low": fmt.Sprint(step.burstable * mi), step.path: step.content,
		} {
			if got := read(t, m, "kubepods/"+path); got != want {
				t.Errorf("%s: %s: got %s, want %s", step.sentence, path, got, want)
			}
		}
	}
}

// TestCgroupV1HasNoMemoryProtection checks that cgroup v1 has no such settings.
func TestCgroupV1HasNoMemoryProtection(t *testing.T) {
	t.Parallel()
	c, err := newCgroups(
		machine{hierarchies: []hierarchy{{mount: t.TempDir(), controllers: []string{"memory"}, mkdir: mkdir}}},
		Options{Driver: driverCgroupfs, ReserveMemory: true, MemoryThrottlingFactor: 0.9},
	)
	if err != nil {
		t.Fatal(err)
	}
	if c.rules.reserve || c.rules.factor != 0 ||
		len(limitsOf(podOf("u", list("memory", "1Mi"), nil), c.rules).Unified) > 0 {
		t.Errorf("%+v", c.rules)
	}
}

func TestLimitsOfAllPods(t *testing.T) {
	t.Parallel()
	pod := podOf("u", list("cpu", "1"), nil)
	for _, row := range []struct {
		what                  string
		pods                  corev1.ResourceList
		weight, memory, pages string
	}{
		{"to the allocatable resources", list("cpu", "4", "memory", "8Mi", "hugepages-2Mi", "4Mi"), "303", "8388608",
			"4194304"},
		{"not without limits", nil, "100", "max", "max"},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			m := fakeCgroupfs(t, "cpu memory pids hugetlb")
			for run := range 2 { // the second agent finds the pod without its limits
				if run == 1 {
					for file, text := range map[string]string{"cpu.weight": "100", "memory.max": "max",
						"hugetlb.2MB.max": "max"} {
						if err := os.WriteFile(filepath.Join(m.hierarchies[0].mount, "kubepods", file), []byte(text),
							0o644); err != nil {
							t.Fatal(err)
						}
					}
				}
				c, err := newCgroups(m, Options{PodsLimit: row.pods})
				if err != nil {
					t.Fatal(err)
				}
				ok, err := c.Exists(t.Context(), pod)
				if !ok && err == nil {
					err = c.Ensure(t.Context(), pod)
				}
				if err != nil {
					t.Fatal(err)
				}
				for file, want := range map[string]string{"cpu.weight": row.weight, "memory.max": row.memory,
					"hugetlb.2MB.max": row.pages, "cpu.max": "max"} {
					if got := strings.TrimSuffix(read(t, m, "kubepods/"+file), " 100000"); got != want {
						t.Errorf("%s: got %q, want %q", file, got, want)
					}
				}
			}
		})
	}
}

func TestMissingControllers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what, controllers, lacking string
		limits                     corev1.ResourceList
		bad                        string
	}{
		{"a controller that the host lacks limits nothing", "cpu", "memory.max", list("cpu", "1", "memory", "1Mi"), ""},
		{"a required controller that is not enabled is an error", "cpu memory", "memory.max",
			list("cpu", "1", "memory", "1Mi"), "controller memory is not enabled"},
		{"a controller that is not required may be disabled", "cpu memory", "memory.max", list("cpu", "1"), ""},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			c, err := newCgroups(fakeCgroupfs(t, row.controllers, row.lacking), Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Ensure(t.Context(), podOf("u", nil, row.limits))
			if (err == nil) != (row.bad == "") || err != nil && !strings.Contains(err.Error(), row.bad) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// fakeUnits is a fake of systemd that records its calls.
type fakeUnits struct {
	started map[string]map[string]any
	stopped []string
	err     error
}

func (r *fakeUnits) start(_ context.Context, slice string, properties []systemd.Property) error {
	r.started[slice] = map[string]any{}
	for _, p := range properties {
		r.started[slice][p.Name] = p.Value.Value()
	}
	return r.err
}

func (r *fakeUnits) stop(_ context.Context, slice string) error {
	r.stopped = append(r.stopped, slice)
	return r.err
}

func TestSystemdSlices(t *testing.T) {
	t.Parallel()
	m := fakeCgroupfs(t, "cpu memory pids")
	r := &fakeUnits{started: map[string]map[string]any{}}
	m.units = r
	c, err := newCgroups(m, Options{CPUQuota: true, PodPidsLimit: 9})
	if err != nil || c.Driver() != driverSystemd {
		t.Fatal(err)
	}
	pod := podOf("a-b", list("cpu", "1"), list("cpu", "1505m", "memory", "4Mi"))
	if err := c.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	got := r.started["kubepods-burstable-poda_b.slice"]
	for name, want := range map[string]any{
		"CPUWeight": uint64(100), "CPUQuotaPerSecUSec": uint64(1_510_000), "CPUQuotaPeriodUSec": uint64(100_000),
		"MemoryMax": uint64(4 << 20), "TasksMax": uint64(9), "DefaultDependencies": false,
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
	if tier := r.started["kubepods-burstable.slice"]; tier["CPUWeight"] != uint64(100) {
		t.Errorf("got properties of the tier %v", tier)
	}
	dir := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice/"
	if got := read(t, m, dir+"cpu.max"); got != "150500 100000" {
		t.Errorf("the file has the requested value: %s", got)
	}
	if uids, err := c.Pods(t.Context()); err != nil || len(uids) != 1 || uids[0] != "a-b" {
		t.Errorf("got pods %v, error %v", uids, err)
	}
	if err := os.RemoveAll(filepath.Join(m.hierarchies[0].mount, dir)); err != nil {
		t.Fatal(err)
	}
	// rmdir fails for directories with files here
	if err := os.Mkdir(filepath.Join(m.hierarchies[0].mount, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context(), pod); err != nil || len(r.stopped) != 1 {
		t.Errorf("got stopped slices %v, error %v", r.stopped, err)
	}
	r.err = context.DeadlineExceeded
	if err := c.Ensure(t.Context(), pod); plan.KindOf(err) != plan.Timeout {
		t.Errorf("got %v from a slow systemd", err)
	}
}

func TestUnlimitedDoesNotExist(t *testing.T) { // G5
	t.Parallel()
	m := fakeCgroupfs(t, "cpu memory")
	pod := podOf("u", nil, list("cpu", "1", "memory", "1Mi"))
	first, err := newCgroups(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Ensure(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.hierarchies[0].mount, first.layout.dir(first.names(pod)), "memory.max")
	if err := os.WriteFile(file, []byte("max"), 0o644); err != nil { // the agent stopped before it was set
		t.Fatal(err)
	}
	second, _ := newCgroups(m, Options{})
	if ok, err := second.Exists(t.Context(), pod); !ok || err != nil ||
		read(t, m, "kubepods/podu/memory.max") != "1048576" {
		t.Errorf("%t, %v, memory.max %s", ok, err, read(t, m, "kubepods/podu/memory.max"))
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	third, _ := newCgroups(m, Options{})
	for range 2 {
		if ok, err := third.Exists(t.Context(), pod); ok || err != nil {
			t.Errorf("pod without its limit: got %t, %v", ok, err)
		}
		if err := third.Ensure(t.Context(), pod); err == nil {
			t.Error("Ensure without the limit succeeded")
		}
	}
}
