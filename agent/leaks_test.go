package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"berth/agent/hostfake"
)

// fakeLeakFinder is a LeakFinder whose leaks a test controls.
type fakeLeakFinder struct {
	mu         sync.Mutex
	ownership  map[string]Ownership // by name
	since      map[string]time.Time // when each was added
	removed    map[string]time.Time
	scans      []bool // deep, by scan
	deepOnly   map[string]bool
	removeErrs map[string]error // removals that fail, by name
	onFind     func()
}

func newFakeLeakFinder() *fakeLeakFinder {
	return &fakeLeakFinder{
		ownership: map[string]Ownership{}, since: map[string]time.Time{}, removed: map[string]time.Time{},
		deepOnly: map[string]bool{}, removeErrs: map[string]error{}, onFind: func() {},
	}
}

func (f *fakeLeakFinder) put(name string, p Ownership) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ownership[name], f.since[name] = p, time.Now()
}

func (f *fakeLeakFinder) Find(_ context.Context, deep bool) (out []Leak, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onFind()
	f.scans = append(f.scans, deep)
	for name, p := range f.ownership {
		if f.deepOnly[name] && !deep {
			continue
		}
		out = append(out, Leak{Kind: "shim", Name: name, Ownership: p, Remove: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if err := f.removeErrs[name]; err != nil {
				return err
			}
			delete(f.ownership, name)
			f.removed[name] = time.Now()
			return nil
		}})
	}
	return out, nil
}

// removedAfter returns the time between the addition and the removal of a leak. Zero: it is not
// removed.
func (f *fakeLeakFinder) removedAfter(name string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed[name].IsZero() {
		return 0
	}
	return f.removed[name].Sub(f.since[name])
}

func (f *fakeLeakFinder) scanCounts() (all, deep int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.scans {
		if all++; d {
			deep++
		}
	}
	return all, deep
}

func TestLeaksAreRemovedAfterMinAge(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeLeakFinder()
		s.put("marked", Marked)
		s.put("unreferenced", Unreferenced)
		s.put("shared", UnreferencedShared)
		s.deepOnly["unreferenced"] = true
		removedCount := 0
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks, l.agent.Metrics = s, Metrics{LeakRemoved: func(string) { removedCount++ }}
		l.desire("file")
		time.Sleep(10 * time.Minute)
		l.stop()
		for name, p := range map[string]Ownership{"marked": Marked, "unreferenced": Unreferenced,
			"shared": UnreferencedShared} {
			if got := s.removedAfter(name); got < p.minAge() || got > p.minAge()+2*leakScanInterval {
				t.Errorf("%s: removed after %v, want at least %v", name, got, p.minAge())
			}
		}
		if removedCount != 3 {
			t.Errorf("got %d removals in the metric, want 3", removedCount)
		}
	})
}

func TestLeakScansWithoutLeaksAreRareAndShallow(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeLeakFinder()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(2 * leakSuspicion)
		before, beforeDeep := s.scanCounts()
		if beforeDeep < 5 || beforeDeep > 12 {
			t.Errorf("got %d deep scans after the start, want 5 to 12", beforeDeep)
		}
		time.Sleep(time.Hour)
		all, deep := s.scanCounts()
		if n := all - before; n != 80 { // one per audit
			t.Errorf("got %d scans in an hour, want 80", n)
		}
		if n := deep - beforeDeep; n < 5 || n > 6 {
			t.Errorf("got %d deep scans in an hour, want 5 or 6", n)
		}
	})
}

// TestLateLeakIsRemoved: a runtime on a busy host fails a call long after the agent was killed, and leaves a shim.
func TestLateLeakIsRemoved(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeLeakFinder()
		s.deepOnly["late"] = true
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(40 * time.Second)
		s.put("late", Unreferenced)
		time.Sleep(2 * time.Minute)
		l.stop()
		if got := s.removedAfter("late"); got < Unreferenced.minAge() || got > 2*time.Minute {
			t.Errorf("removed after %v, want at least %v", got, Unreferenced.minAge())
		}
	})
}

func TestLeakScanKeepsObjectsOfCallsInProgress(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod := hostfake.PodOf("p", "a")
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{"runSandbox uid-p": 3 * time.Minute})
		s := newFakeLeakFinder()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(30 * time.Second)
		s.put("older", Marked)
		time.Sleep(time.Minute) // two audits
		if got := s.removedAfter("older"); got == 0 {
			t.Error("a leak older than any call was not removed")
		}
		l.desire("file", pod)
		time.Sleep(time.Second)
		s.put("created by the call", Marked)
		l.until(4*time.Minute, "p runs", l.isRunning(pod))
		if got := s.removedAfter("created by the call"); got != 0 && got < 2*time.Minute+58*time.Second {
			t.Errorf("removed after %v, while the call was in progress", got)
		}
		time.Sleep(2 * time.Minute)
		if s.removedAfter("created by the call") == 0 {
			t.Error("the leak was not removed after the call")
		}
	})
}

func TestFailedCallAndReconnectTriggerLeakScans(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeLeakFinder()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		for what, reason := range map[string]func(){
			"a failed call": func() { l.agent.leaks.calls.done(errors.New("interrupted")) },
			"a reconnect":   func() { l.event("", runtimeEvent{Incomplete: true}) },
		} {
			time.Sleep(2 * time.Minute)
			_, before := s.scanCounts()
			reason()
			time.Sleep(7 * time.Second)
			if _, deep := s.scanCounts(); deep < before+2 {
				t.Errorf("%s: got %d deep scans, want at least 2", what, deep-before)
			}
		}
	})
}

func TestFailedLeakRemovalIsRetried(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeLeakFinder()
		s.put("stuck", Marked)
		s.removeErrs["stuck"] = errors.New("process still running")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(10 * time.Minute)
		if all, _ := s.scanCounts(); all > 40 {
			t.Errorf("got %d scans in 10 minutes, want at most 40", all)
		}
		s.mu.Lock()
		delete(s.removeErrs, "stuck")
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if s.removedAfter("stuck") == 0 {
			t.Error("the removal was not retried")
		}
	})
}
