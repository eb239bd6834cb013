package crilog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeWatcher is a GrowthWatcher controlled by the test.
type fakeWatcher struct {
	mu        sync.Mutex
	armCounts map[string]int // number of Arm calls by path
	armed     map[string]bool
	grown     chan string
}

func newFakeWatcher() *fakeWatcher {
	return &fakeWatcher{armCounts: map[string]int{}, armed: map[string]bool{}, grown: make(chan string, 1)}
}

func (b *fakeWatcher) Arm(path string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armCounts[path]++
	b.armed[path] = true
	return nil
}

func (b *fakeWatcher) Disarm(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.armed, path)
}

func (b *fakeWatcher) Grown() <-chan string { return b.grown }

// armCount returns how often a file was armed, and whether it still is.
func (b *fakeWatcher) armCount(path string) (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.armCounts[path], b.armed[path]
}

// grow emulates the kernel when a file has grown.
func (b *fakeWatcher) grow(path string) {
	b.mu.Lock()
	armed := b.armed[path]
	delete(b.armed, path)
	b.mu.Unlock()
	if armed {
		b.grown <- path
	}
}

// runRotator runs a Rotator in virtual time concurrently with f.
func runRotator(t *testing.T, r *Rotator, f func(b *fakeWatcher)) {
	t.Helper()
	b := newFakeWatcher()
	r.MaxFiles, r.Growth, r.Now = 5, b, time.Now
	if r.Interval == 0 {
		r.Interval = time.Hour
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.Run(ctx) })
	f(b)
}

// fileSizes returns the size of the largest uncompressed file of a log, and of all files that
// are not compressed.
func fileSizes(t *testing.T, path string) (largest, total int64) {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && !strings.HasSuffix(f, ".gz") {
			largest, total = max(largest, st.Size()), total+st.Size()
		}
	}
	return largest, total
}

// TestScenario30_FloodStaysNearLimit lets a log grow at a steady rate after a
// long idle time, and checks how far a file exceeds its maximum size. Audits run once an
// hour.
func TestScenario30_FloodStaysNearLimit(t *testing.T) {
	const maxSize = 100 << 10
	for _, rate := range []int{1 << 10, 50 << 10, 200 << 10, 1 << 20} { // bytes per second
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFakeRuntime(t)
				r := &Rotator{MaxSize: maxSize, Logs: func() []Log { return []Log{{Path: l.path, Reopen: l.reopen}} }}
				rotations := 0
				r.OnRotated = func(n int) { rotations += n }
				runRotator(t, r, func(b *fakeWatcher) {
					time.Sleep(10 * time.Minute)
					var largest int64
					for written := 0; written < 5*maxSize; {
						n := max(rate/100, 80) // every 10 ms, or less often if that is less than a line
						l.raw(stamp + " stdout F " + strings.Repeat("x", n-len(stamp)-11) + "\n")
						written += n
						b.grow(l.path)
						time.Sleep(time.Second * time.Duration(n) / time.Duration(rate))
						synctest.Wait()
						size, _ := fileSizes(t, l.path)
						largest = max(largest, size)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					// Growth is unobserved for firstCheckDelay at the start, and for up to maxCheckDelay at a low rate.
					if limit := int64(maxSize + max(rate/10, 400)); largest > limit {
						t.Errorf("largest file: got %d bytes, want at most %d", largest, limit)
					}
					if rotations < 3 {
						t.Errorf("got %d rotations, want at least 3", rotations)
					}
				})
			})
		})
	}
}

// TestIdleLogIsNotChecked counts how often a Rotator wakes up: each check
// of a log that does not grow arms the watch again.
func TestIdleLogIsNotChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeRuntime(t)
		r := &Rotator{MaxSize: 1 << 20, Logs: func() []Log { return []Log{{Path: l.path, Reopen: l.reopen}} }}
		runRotator(t, r, func(b *fakeWatcher) {
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			if n, _ := b.armCount(l.path); n != 1 {
				t.Errorf("file was armed %d times", n)
			}
			l.writeLines("a")
			b.grow(l.path)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n, armed := b.armCount(l.path); n != 2 || !armed {
				t.Errorf("file was armed %d times after a write", n)
			}
		})
	})
}

func TestRotatorWatchesCurrentLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := newFakeRuntime(t), newFakeRuntime(t)
		var mu sync.Mutex
		logs := []Log{{Path: first.path, Reopen: first.reopen}}
		changed := make(chan struct{}, 1)
		listCalls := 0
		r := &Rotator{MaxSize: 100, Changed: changed, Logs: func() []Log {
			mu.Lock()
			defer mu.Unlock()
			listCalls++
			return logs
		}}
		runRotator(t, r, func(b *fakeWatcher) {
			time.Sleep(time.Minute)
			mu.Lock()
			logs = []Log{{Path: second.path, Reopen: second.reopen}}
			mu.Unlock()
			for range 100 { // as when many pods start
				changed <- struct{}{}
				time.Sleep(10 * time.Millisecond)
			}
			second.writeLines("a", "b", "c", "d")
			b.grow(second.path)
			time.Sleep(time.Minute)
			synctest.Wait()
			_, old := b.armCount(first.path)
			if _, armed := b.armCount(second.path); old || !armed {
				t.Errorf("armed: got old log %t, new log %t; want false, true", old, armed)
			}
			if !strings.HasPrefix(names(t, second.path), " .") {
				t.Errorf("log was not rotated: %q", names(t, second.path))
			}
			if listCalls > 4 {
				t.Errorf("Logs was called %d times", listCalls)
			}
		})
	})
}

// TestAuditFindsMissedGrowth emulates a lost kernel event, and a file
// that another process has removed.
func TestAuditFindsMissedGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeRuntime(t)
		r := &Rotator{MaxSize: 250, Interval: 10 * time.Second, Logs: func() []Log {
			return []Log{{Path: l.path,
				Reopen: l.reopen}}
		}}
		runRotator(t, r, func(b *fakeWatcher) {
			time.Sleep(5 * time.Second)
			l.writeLines("a")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n, _ := b.armCount(l.path); n != 2 {
				t.Errorf("file was armed %d times", n)
			}
			if err := os.Remove(l.path); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			l.writeLines("b", "c", "d", "e", "f", "g", "h")
			b.grow(l.path)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := content(t, l.path); !strings.HasPrefix(got, "b\n") || !strings.HasPrefix(names(t, l.path), " .") {
				t.Errorf("content %q, files %q", got, names(t, l.path))
			}
		})
	})
}

// TestFailedRotationIsRetriedByAudit lets Reopen fail.
func TestFailedRotationIsRetriedByAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeRuntime(t)
		l.writeLines("a", "b")
		failed := 0
		r := &Rotator{MaxSize: 20, Interval: 10 * time.Second}
		r.Logs = func() []Log {
			return []Log{{Path: l.path, Reopen: func() error {
				return os.ErrPermission
			}, OnError: func(error) { failed++ }}}
		}
		runRotator(t, r, func(*fakeWatcher) {
			time.Sleep(35 * time.Second)
			synctest.Wait()
			if failed != 4 {
				t.Errorf("got %d failed rotations, want 4", failed)
			}
		})
	})
}

func TestCheckDelay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit, before, after int64
		took, want           time.Duration
	}{
		{100, 0, 1, time.Second, maxCheckDelay},
		{1000, 0, 500, 100 * time.Millisecond, 50 * time.Millisecond},
		{1000, 0, 990, 100 * time.Millisecond, minCheckDelay},
		{1000, 500, 0, time.Second, firstCheckDelay}, // another file
	} {
		if got := checkDelay(c.limit, c.before, c.after, c.took); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestInotifyWatcherReportsOnce tests with the real kernel.
func TestInotifyWatcherReportsOnce(t *testing.T) {
	t.Parallel()
	g, err := NewInotifyWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	a, b := newFakeRuntime(t), newFakeRuntime(t)
	next := func() string {
		t.Helper()
		select {
		case path := <-g.Grown():
			return path
		case <-time.After(time.Minute):
			t.Fatal("event timeout")
			return ""
		}
	}
	for _, r := range []*fakeRuntime{a, b} {
		if err := g.Arm(r.path); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		a.writeLines("x")
	}
	if got := next(); got != a.path {
		t.Errorf("unexpected event of %s", got)
	}
	b.writeLines("x")
	if got := next(); got != b.path { // no second event of a
		t.Errorf("unexpected event of %s", got)
	}
	for _, r := range []*fakeRuntime{a, b} {
		if err := g.Arm(r.path); err != nil {
			t.Fatal(err)
		}
	}
	g.Disarm(a.path)
	a.writeLines("x")
	b.writeLines("x")
	if got := next(); got != b.path {
		t.Errorf("unexpected event of %s", got)
	}
	if err := g.Arm(a.path + "x"); err == nil {
		t.Error("Arm succeeded for a missing file")
	}
}

// TestScenario30_RealFloods uses inotify: only kernel events trigger
// rotations.
func TestScenario30_RealFloods(t *testing.T) {
	t.Parallel()
	g, err := NewInotifyWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	l := newFakeRuntime(t)
	rotated := make(chan struct{}, 1000)
	r := &Rotator{MaxSize: 64 << 10, MaxFiles: 100, Interval: time.Hour, Growth: g, Now: time.Now,
		OnRotated: func(int) { rotated <- struct{}{} }}
	r.Logs = func() []Log {
		return []Log{{Path: l.path, Reopen: l.reopen}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { r.Run(ctx) })
	n := 0
	for range 5 {
		for range 2000 {
			l.writeLines(fmt.Sprint("line ", n))
			n++
		}
		select {
		case <-rotated:
		case <-time.After(time.Minute):
			t.Fatal("log was not rotated")
		}
	}
	cancel()
	wg.Wait()
	i := 0
	for line := range strings.Lines(content(t, l.path)) {
		if line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("got %q, want line %d", line, i)
		}
		i++
	}
	if i != n {
		t.Errorf("got %d lines, want %d", i, n)
	}
}
