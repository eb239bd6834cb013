package node

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestTheInterfaceOfTheDefaultRouteIsFound(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	for name, tt := range map[string]struct{ routes, want string }{
		"a default route beside others": {head + "br0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\neth7\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", "eth7"},
		"no default route":              {head + "br0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n", ""},
		"no routes":                     {"", ""},
		"rubbish":                       {"a b c\n\x00\n", ""},
	} {
		if got := defaultInterface([]byte(tt.routes)); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestThisHostHasAddressesAndCapacity(t *testing.T) {
	addrs, err := Addresses()
	if err != nil || len(addrs) == 0 {
		t.Fatalf("addresses %v, %v", addrs, err)
	}
	c, err := Capacity(t.TempDir(), 110)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if q := c[name]; q.Sign() <= 0 {
			t.Errorf("%s is %s", name, q.String())
		}
	}
}

func TestMeminfoNamesWhatIsWrong(t *testing.T) {
	if n, err := meminfo([]byte("MemTotal:       16 kB\n"), "MemTotal"); err != nil || n != 16<<10 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, text := range []string{"", "MemTotal: many kB\n", "MemFree: 3 kB\n"} {
		if _, err := meminfo([]byte(text), "MemTotal"); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestReservedIsTakenOffAndNeverBelowZero(t *testing.T) {
	capacity := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
	got := Allocatable(capacity,
		corev1.ResourceList{"cpu": resource.MustParse("500m"), "fantasy": resource.MustParse("1")},
		corev1.ResourceList{"memory": resource.MustParse("2Gi")})
	cpu, memory := got["cpu"], got["memory"]
	if cpu.MilliValue() != 1500 || memory.Sign() != 0 || len(got) != 2 {
		t.Errorf("got %v", got)
	}
	if q := capacity["cpu"]; q.MilliValue() != 2000 {
		t.Error("the capacity itself was changed")
	}
}

func TestHugepagesAreCountedBySize(t *testing.T) {
	dir := t.TempDir()
	for name, n := range map[string]string{"hugepages-2048kB": "3\n", "hugepages-1048576kB": "0\n", "rubbish": "1"} {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sub, "nr_hugepages"), []byte(n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := hugepages(dir)
	if len(got) != 2 || got[2<<20] != 3 || got[1<<30] != 0 {
		t.Errorf("got %v", got)
	}
}

func TestOnlyReadOnlyMappingsOfTheProgramAreShed(t *testing.T) {
	maps := "00400000-00401000 r-xp 00000000 08:01 42 /bin/x\n" +
		"00500000-00501000 r--p 00000000 08:01 42 /bin/x\n" +
		"00600000-00601000 rw-p 00000000 08:01 42 /bin/x\n" +
		"00700000-00701000 r--p 00000000 08:01 43 /lib/y\n" +
		"c000000000-c000400000 rw-p 00000000 00:00 0\nrubbish\n"
	got := readOnlyRanges([]byte(maps), "/bin/x")
	if len(got) != 2 || got[0] != (addressRange{0x400000, 0x401000}) || got[1] != (addressRange{0x500000, 0x501000}) {
		t.Errorf("got %x", got)
	}
}

func TestTheProgramGoesOnAfterShedding(t *testing.T) {
	if err := shedStartPages(); err != nil {
		t.Fatal(err)
	}
	if _, err := Addresses(); err != nil {
		t.Fatal(err)
	}
}

func TestMemoryIsGivenBackWhenCalmReturns(t *testing.T) {
	t.Parallel()
	c := calm{before: 10 << 20}
	for i, step := range []struct {
		more uint64 // allocated since the step before, in KiB
		want bool
	}{
		{9000, false}, {2000, false}, {500, true}, // the start's own work is over
		{500, false}, {900, false}, // little is done
		{20000, false}, {30000, false}, {1024, true}, // a burst, and calm again
		{0, false}, {1000, false}, {15000, false}, {384, true}, // little by little it comes to much
	} {
		if got := c.returned(c.before + step.more<<10); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}
