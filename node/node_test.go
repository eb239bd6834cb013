package node

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestDefaultInterface(t *testing.T) {
	const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
	for name, tt := range map[string]struct{ routes, want string }{
		"a default route beside others": {head +
			"br0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" +
			"eth7\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n", "eth7"},
		"no default route": {head + "br0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n", ""},
		"no routes":        {"", ""},
		"rubbish":          {"a b c\n\x00\n", ""},
	} {
		if got := defaultInterface([]byte(tt.routes)); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestChangedAddresses(t *testing.T) {
	t.Parallel()
	list := func(text string) (out []netip.Addr) {
		for a := range strings.FieldsSeq(text) {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for name, tt := range map[string]struct{ had, here, now, want string }{
		"nothing changed":              {"192.0.2.1", "192.0.2.1 10.88.0.1", "192.0.2.1", ""},
		"another one is preferred now": {"192.0.2.1", "192.0.2.1 192.0.2.2", "192.0.2.2", ""},
		"a family came": {"192.0.2.1", "192.0.2.1 2001:db8::1", "192.0.2.1 2001:db8::1",
			""},
		"the address was replaced": {"192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.2"},
		"one of two was replaced": {"192.0.2.1 2001:db8::1", "192.0.2.1 2001:db8::2",
			"192.0.2.1 2001:db8::2", "192.0.2.1 2001:db8::2"},
		"one of two was removed without replacement":  {"192.0.2.1 2001:db8::1", "192.0.2.1", "192.0.2.1", "192.0.2.1"},
		"the address was removed without replacement": {"192.0.2.1", "", "127.0.0.1", ""},
		"there was none":                  {"127.0.0.1", "", "127.0.0.1", ""},
		"there was none and one has come": {"127.0.0.1", "192.0.2.1", "192.0.2.1", "192.0.2.1"},
	} {
		if got := changedAddresses(list(tt.had), list(tt.here), list(tt.now)); !slices.Equal(got, list(tt.want)) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestPodBridgeIsIgnored checks that the bridge of the first pod is ignored. Otherwise a host without
// another network would use its address as the node address.
func TestPodBridgeIsIgnored(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	for _, file := range []string{
		"eth0/device/vendor", "veth1/uevent", "br0/bridge/id", "br0/brif/eth0/state", "br0/brif/veth1/state",
		"cni0/bridge/id", "cni0/brif/veth1/state", "empty/bridge/id", "empty/brif/.keep",
		"bond0/uevent=DEVTYPE=bond", "br1/bridge/id", "br1/brif/bond0/state",
	} {
		name, text, _ := strings.Cut(file, "=")
		path := filepath.Join(sys, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(sys, "empty/brif/.keep")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"eth0": false, "veth1": false, "br0": false, "br1": false, "cni0": true,
		"empty": true, "none": false} {
		if got := isPodBridge(sys, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAddressOfOwnServiceIsIgnored: an address with scope host on the loopback interface is no address of the
// node, and another one is.
func TestAddressOfOwnServiceIsIgnored(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine of the test
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	own, err := netlink.ParseAddr("10.43.0.10/32")
	if err != nil {
		t.Fatal(err)
	}
	own.Scope = unix.RT_SCOPE_HOST
	other, err := netlink.ParseAddr("192.0.2.1/32")
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, own), netlink.AddrAdd(lo, other))
	}
	if err != nil {
		t.Fatal(err)
	}
	got := addressesOf(&net.Interface{Index: lo.Attrs().Index})
	if want := []netip.Addr{netip.MustParseAddr("192.0.2.1")}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAddressesAndCapacityOfThisHost(t *testing.T) {
	addrs, err := Addresses()
	if err != nil || len(addrs) == 0 {
		t.Fatalf("addresses %v, %v", addrs, err)
	}
	c, err := Capacity(t.TempDir(), 110)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if q := c[name]; q.Sign() <= 0 {
			t.Errorf("%s: got %s", name, q.String())
		}
	}
}

func TestMeminfoErrors(t *testing.T) {
	if n, err := meminfo([]byte("MemTotal:       16 kB\n"), "MemTotal"); err != nil || n != 16<<10 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, text := range []string{"", "MemTotal: many kB\n", "MemFree: 3 kB\n"} {
		if _, err := meminfo([]byte(text), "MemTotal"); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestAllocatableSubtractsReserved(t *testing.T) {
	capacity := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")}
	got := Allocatable(capacity,
		corev1.ResourceList{"cpu": resource.MustParse("500m"), "fantasy": resource.MustParse("1")},
		corev1.ResourceList{"memory": resource.MustParse("2Gi")})
	cpu, memory := got["cpu"], got["memory"]
	if cpu.MilliValue() != 1500 || memory.Sign() != 0 || len(got) != 2 {
		t.Errorf("got %v", got)
	}
	if q := capacity["cpu"]; q.MilliValue() != 2000 {
		t.Error("the capacity was modified")
	}
}

func TestAllocatableSubtractsHugePagesFromMemory(t *testing.T) {
	for _, row := range []struct{ memory, twoMi, oneGi, want string }{
		{"16Gi", "8Gi", "2Gi", "4Gi"}, // in addition to the reservation
		{"16Gi", "0", "0", "14Gi"},
		{"16Gi", "15Gi", "0", "0"},
	} {
		capacity := corev1.ResourceList{
			"cpu": resource.MustParse("2"), "memory": resource.MustParse(row.memory),
			"hugepages-2Mi": resource.MustParse(row.twoMi), "hugepages-1Gi": resource.MustParse(row.oneGi),
		}
		reserved := corev1.ResourceList{"memory": resource.MustParse("2Gi")}
		got, whole := Allocatable(capacity, reserved), Unreserved(capacity, reserved)
		memory, small, unreserved := got["memory"], got["hugepages-2Mi"], whole["memory"]
		if memory.Cmp(resource.MustParse(row.want)) != 0 || small.Cmp(resource.MustParse(row.twoMi)) != 0 ||
			unreserved.Cmp(resource.MustParse("14Gi")) != 0 {
			t.Errorf("%+v: memory %s, pages of 2Mi %s, unreserved %s", row, memory.String(), small.String(),
				unreserved.String())
		}
	}
}

func TestHugepagesBySize(t *testing.T) {
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

func TestReadOnlyRanges(t *testing.T) {
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

func TestReleaseReadOnlyPages(t *testing.T) {
	if err := releaseReadOnlyPages(); err != nil {
		t.Fatal(err)
	}
	if _, err := Addresses(); err != nil {
		t.Fatal(err)
	}
}

func TestIdleDetectorTrimsWhenIdle(t *testing.T) {
	t.Parallel()
	c := idleDetector{lastAllocated: 10 << 20}
	for i, step := range []struct {
		more uint64 // allocated since the previous step, in KiB
		want bool
	}{
		{9000, false}, {2000, false}, {500, true}, // end of the startup
		{500, false}, {900, false}, // low activity
		{20000, false}, {30000, false}, {1024, true}, // a burst, then idle
		{0, false}, {1000, false}, {15000, false}, {384, true}, // small allocations accumulate
	} {
		if got := c.shouldTrim(c.lastAllocated+step.more<<10, 8<<20); got != step.want {
			t.Errorf("step %d: got %v", i, got)
		}
	}
}

func TestIdleDetectorScalesWithLiveHeap(t *testing.T) {
	t.Parallel()
	const kept = 64 << 20
	c := idleDetector{lastAllocated: 100 << 20}
	for i, step := range []struct {
		more uint64 // allocated since the previous step, in KiB
		want bool
	}{
		{5000, false}, {4096, true}, // a sixteenth of the live heap
		{4096, false}, {50000, false}, {4096, false}, // less than the minimum was allocated
		{4096, false}, {4096, true},
	} {
		if got := c.shouldTrim(c.lastAllocated+step.more<<10, kept); got != step.want {
			t.Errorf("step %d: got %v", i, got)
		}
	}
}

func TestValidateReserved(t *testing.T) {
	t.Parallel()
	list := func(name corev1.ResourceName, q string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(q)}
	}
	has := corev1.ResourceList{
		"cpu":    resource.MustParse("2"),
		"memory": resource.MustParse("1Gi"),
		"pid":    resource.MustParse("1000"),
	}
	for _, ok := range [][]corev1.ResourceList{{}, {list("cpu", "1"), list("cpu", "1")},
		{list("memory", "1Gi"), list("pid", "1k")}} {
		if err := ValidateReserved(has, ok...); err != nil {
			t.Errorf("%v: %v", ok, err)
		}
	}
	for _, bad := range [][]corev1.ResourceList{{list("cpu", "1"), list("cpu", "1001m")}, {list("memory", "2Gi")},
		{list("pid", "1001")}, {list("hugepages-2Mi", "2Mi")}} {
		if err := ValidateReserved(has, bad...); err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestMajorMinor(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"v1.36.2": "1.36", "v1.37.0-alpha.1": "1.37", "": ""} {
		if got := majorMinor(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}
