package node

import (
	"reflect"
	"testing"
	"time"
)

func TestParseMemory(t *testing.T) {
	t.Parallel()
	got := parseMemory(
		[]byte(
			"MemTotal:  1000 kB\nMemFree:  300 kB\nBuffers: 10 kB\nCached: 200 kB\nInactive(file): 50 kB\nAnonPages: " +
				"90 kB\nMapped: 5 kB\nSwapTotal: 20 kB\nSwapFree: 15 kB\nHugePages_Total: 3\n",
		),
	)
	want := Memory{
		Total:      1000 << 10,
		Used:       700 << 10,
		WorkingSet: 650 << 10,
		Anonymous:  90 << 10,
		Cache:      210 << 10,
		Mapped:     5 << 10,
		SwapUsed:   5 << 10,
		SwapFree:   15 << 10,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if m, err := ReadMemory(); err != nil || m.Total == 0 || m.WorkingSet == 0 || m.WorkingSet > m.Total {
		t.Errorf("got memory of this host %+v, %v", m, err)
	}
}

func TestParseInterfaces(t *testing.T) {
	t.Parallel()
	got := parseInterfaces([]byte(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|` +
		`bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0  ` +
		`    100       1    0    0    0     0       0          0
  eth0:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
veth12ab: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
`))
	want := []Interface{
		{
			Name:      "eth0",
			RxBytes:   1,
			RxPackets: 2,
			RxErrors:  3,
			RxDropped: 4,
			TxBytes:   9,
			TxPackets: 10,
			TxErrors:  11,
			TxDropped: 12,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if all := Interfaces(1 << 30); all != nil {
		t.Errorf("got interfaces %v of a missing process", all)
	}
}

func TestStatsOfThisHost(t *testing.T) {
	t.Parallel()
	if d, err := ReadDisk(t.TempDir()); err != nil || d.Capacity == 0 || d.Used > d.Capacity {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := ReadDisk("/none/such"); err == nil {
		t.Error("ReadDisk of a missing path succeeded")
	}
	if at := BootTime(); at.IsZero() || at.After(time.Now()) {
		t.Errorf("got boot time %s", at)
	}
	if now, most := Processes(); now <= 0 || most <= 0 {
		t.Errorf("got %d processes of %d", now, most)
	}
}
