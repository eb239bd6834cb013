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
	told := b.armed[path]
	delete(b.armed, path)
	b.mu.Unlock()
	if told {
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

// biggest returns the size of the largest file of a log, and of all files that
// are not compressed.
func biggest(t *testing.T, path string) (one, all int64) {
	t.Helper()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && !strings.HasSuffix(f, ".gz") {
			one, all = max(one, st.Size()), all+st.Size()
		}
	}
	return one, all
}

// TestScenario30_FloodStaysNearLimit lets a log grow at a steady rate after a
// long idle time, and checks how far a file exceeds its maximum size. Audits run once an
// hour.
func TestScenario30_FloodStaysNearLimit(t *testing.T) {
	const most = 100 << 10
	for _, rate := range []int{1 << 10, 50 << 10, 200 << 10, 1 << 20} { // bytes per second
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newFakeRuntime(t)
				r := &Rotator{MaxSize: most, Logs: func() []Log { return []Log{{Path: l.path, Reopen: l.reopen}} }}
				moved := 0
				r.OnRotated = func(n int) { moved += n }
				runRotator(t, r, func(b *fakeWatcher) {
					time.Sleep(10 * time.Minute)
					var worst int64
					for written := 0; written < 5*most; {
						n := max(rate/100, 80) // every 10 ms, or less often if that is less than a line
						l.raw(stamp + " stdout F " + strings.Repeat("x", n-len(stamp)-11) + "\n")
						written += n
						b.grow(l.path)
						time.Sleep(time.Second * time.Duration(n) / time.Duration(rate))
						synctest.Wait()
						one, _ := biggest(t, l.path)
						worst = max(worst, one)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					// A flood is unseen for lookFirst at its start, a slow one for lookCalm.
					if bound := int64(most + max(rate/10, 400)); worst > bound {
						t.Errorf("a file grew to %d bytes, more than %d", worst, bound)
					}
					if moved < 3 {
						t.Errorf("rotated %d times", moved)
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
				t.Errorf("it was armed %d times", n)
			}
			l.say("a")
			b.grow(l.path)
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n, armed := b.armCount(l.path); n != 2 || !armed {
				t.Errorf("after a line it was armed %d times", n)
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
		asked := 0
		r := &Rotator{MaxSize: 100, Changed: changed, Logs: func() []Log {
			mu.Lock()
			defer mu.Unlock()
			asked++
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
			second.say("a", "b", "c", "d")
			b.grow(second.path)
			time.Sleep(time.Minute)
			synctest.Wait()
			_, old := b.armCount(first.path)
			if _, armed := b.armCount(second.path); old || !armed {
				t.Errorf("watched: %t %t", old, armed)
			}
			if !strings.HasPrefix(names(t, second.path), " .") {
				t.Errorf("the log was not rotated: %q", names(t, second.path))
			}
			if asked > 4 {
				t.Errorf("Logs was called %d times", asked)
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
			l.say("a")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n, _ := b.armCount(l.path); n != 2 {
				t.Errorf("it was armed %d times", n)
			}
			if err := os.Remove(l.path); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			l.say("b", "c", "d", "e", "f", "g", "h")
			b.grow(l.path)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := content(t, l.path); !strings.HasPrefix(got, "b\n") || !strings.HasPrefix(names(t, l.path), " .") {
				t.Errorf("%q in files %q", got, names(t, l.path))
			}
		})
	})
}

// TestFailedRotationIsRetriedByAudit lets Reopen fail.
func TestFailedRotationIsRetriedByAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFakeRuntime(t)
		l.say("a", "b")
		failed := 0
		r := &Rotator{MaxSize: 20, Interval: 10 * time.Second}
		r.Logs = func() []Log {
			return []Log{{Path: l.path, Reopen: func() error { return os.ErrPermission }, OnError: func(error) { failed++ }}}
		}
		runRotator(t, r, func(*fakeWatcher) {
			time.Sleep(35 * time.Second)
			synctest.Wait()
			if failed != 4 {
				t.Errorf("tried %d times", failed)
			}
		})
	})
}

func TestCheckDelay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most, was, is int64
		took, want    time.Duration
	}{
		{100, 0, 1, time.Second, maxCheckDelay},
		{1000, 0, 500, 100 * time.Millisecond, 50 * time.Millisecond},
		{1000, 0, 990, 100 * time.Millisecond, minCheckDelay},
		{1000, 500, 0, time.Second, firstCheckDelay}, // another file
	} {
		if got := checkDelay(c.most, c.was, c.is, c.took); got != c.want {
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
			t.Fatal("no event")
			return ""
		}
	}
	for _, r := range []*fakeRuntime{a, b} {
		if err := g.Arm(r.path); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		a.say("x")
	}
	if got := next(); got != a.path {
		t.Errorf("event of %s", got)
	}
	b.say("x")
	if got := next(); got != b.path { // no second event of a
		t.Errorf("event of %s", got)
	}
	for _, r := range []*fakeRuntime{a, b} {
		if err := g.Arm(r.path); err != nil {
			t.Fatal(err)
		}
	}
	g.Disarm(a.path)
	a.say("x")
	b.say("x")
	if got := next(); got != b.path {
		t.Errorf("event of %s", got)
	}
	if err := g.Arm(a.path + "x"); err == nil {
		t.Error("a missing file was armed")
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
			l.say(fmt.Sprint("line ", n))
			n++
		}
		select {
		case <-rotated:
		case <-time.After(time.Minute):
			t.Fatal("the log was not rotated")
		}
	}
	cancel()
	wg.Wait()
	i := 0
	for line := range strings.Lines(content(t, l.path)) {
		if line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("%q instead of line %d", line, i)
		}
		i++
	}
	if i != n {
		t.Errorf("%d lines of %d", i, n)
	}
}
