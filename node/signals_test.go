package node

import (
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/node/pressure"
)

func TestReadSignalsOfThisHost(t *testing.T) {
	t.Parallel()
	now, dir := time.Now(), t.TempDir()
	r, err := ReadSignals(now, SignalSources{
		Nodefs: dir,
		Images: dir,
		Pods:   func() PodsMemory { return PodsMemory{WorkingSet: 30, NonReclaimable: 10, Limit: 100} },
	})
	if err != nil || !r.At.Equal(now) || r.Layout != (pressure.FileSystemLayout{}) {
		t.Fatalf("%+v, %v", r, err)
	}
	for _, s := range []pressure.Signal{
		pressure.MemoryAvailable, pressure.PIDAvailable, pressure.NodefsAvailable, pressure.ImagefsAvailable,
		pressure.ContainerfsAvailable,
	} {
		if l, read := r.Levels[s]; !read || l.Available <= 0 || l.Available > l.Capacity {
			t.Errorf("%s: %+v, read %t", s, l, read)
		}
	}
	if l := r.Levels[pressure.AllocatableMemoryAvailable]; l != (pressure.Level{Available: 70, Capacity: 100}) {
		t.Errorf("got pod memory level %+v", l)
	}
	if s := r.MemoryEstimates[pressure.AllocatableMemoryAvailable]; s.Available != 90 || s.Name == "" {
		t.Errorf("got pod memory estimate %+v", s)
	}
	if s := r.MemoryEstimates[pressure.MemoryAvailable]; s.Available <= 0 || s.Name != "MemAvailable" {
		t.Errorf("%+v", s)
	}
}

func TestReadSignalsOmitsUnreadableSignals(t *testing.T) {
	t.Parallel()
	r, err := ReadSignals(time.Now(), SignalSources{Nodefs: "/none/such"})
	if _, read := r.Levels[pressure.NodefsAvailable]; read || err == nil {
		t.Errorf("%+v, %v", r, err)
	}
	if _, read := r.Levels[pressure.MemoryAvailable]; !read {
		t.Error("an unreadable signal hides the others")
	}
}

func TestParsePSIAndTasks(t *testing.T) {
	t.Parallel()
	const text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=7\nfull avg10=12.25 avg60=0.00 avg300=0.00 total=3\n"
	if n, ok := psiFull10(text); n != 12.25 || !ok {
		t.Errorf("%v, %t", n, ok)
	}
	if n, ok := psiAvg10(text, "some"); n != 1.5 || !ok {
		t.Errorf("some: %v, %t", n, ok)
	}
	if n, known := CPUPressure(); known && (n < 0 || n > 100) {
		t.Errorf("got CPU pressure %v%%", n)
	}
	if _, ok := psiFull10("some avg10=1.50"); ok {
		t.Error("a missing file was read")
	}
	for text, want := range map[string]int64{"0.00 0.01 0.05 1/70123 4567\n": 70123, "": 0, "a b c d": 0} {
		if n := tasks(text); n != want {
			t.Errorf("%q: %d", text, n)
		}
	}
}

// The test uses a pipe in place of the kernel's file.
func TestPollEvents(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rung, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- pollEvents(ctx, int(r.Fd()), unix.POLLIN, func() { rung <- struct{}{} }) }()
	for range 2 {
		if _, err := w.Write(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		<-rung
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The test requires PSI or cgroup v1 memory notifications.
func TestKernelAcceptsPSITrigger(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(memoryPSI); err != nil || os.Geteuid() != 0 {
		t.Skip("a kernel without pressure stall figures, or not root")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- WatchMemoryPressure(ctx, func() {}) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, _, err := openPressureLevel("/none/such"); err == nil {
		t.Error("a missing cgroup reports memory pressure")
	}
}

func BenchmarkReadSignals(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := ReadSignals(time.Now(), SignalSources{Nodefs: dir, Images: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
