package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"berth/agent/hostfake"
)

// fakeStrays is a host on which strays lie.
type fakeStrays struct {
	mu      sync.Mutex
	there   map[string]Ownership // by name
	since   map[string]time.Time // when each came
	removed map[string]time.Time
	looks   []bool // deep
	deeply  map[string]bool
	broken  map[string]error // removals that fail
	onFind  func()
}

func newFakeStrays() *fakeStrays {
	return &fakeStrays{
		there: map[string]Ownership{}, since: map[string]time.Time{}, removed: map[string]time.Time{},
		deeply: map[string]bool{}, broken: map[string]error{}, onFind: func() {},
	}
}

func (f *fakeStrays) put(name string, p Ownership) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.there[name], f.since[name] = p, time.Now()
}

func (f *fakeStrays) Find(_ context.Context, deep bool) (out []Leak, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onFind()
	f.looks = append(f.looks, deep)
	for name, p := range f.there {
		if f.deeply[name] && !deep {
			continue
		}
		out = append(out, Leak{Kind: "shim", Name: name, Ownership: p, Remove: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if err := f.broken[name]; err != nil {
				return err
			}
			delete(f.there, name)
			f.removed[name] = time.Now()
			return nil
		}})
	}
	return out, nil
}

// after is how long a stray lay; zero: it still does.
func (f *fakeStrays) after(name string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed[name].IsZero() {
		return 0
	}
	return f.removed[name].Sub(f.since[name])
}

func (f *fakeStrays) looked() (all, deep int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.looks {
		if all++; d {
			deep++
		}
	}
	return all, deep
}

func TestLeaksAreRemovedAfterMinAge(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeStrays()
		s.put("marked", Marked)
		s.put("deserted", Unreferenced)
		s.put("shared", UnreferencedShared)
		s.deeply["deserted"] = true
		swept := 0
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks, l.agent.Metrics = s, Metrics{LeakRemoved: func(string) { swept++ }}
		l.desire("file")
		time.Sleep(10 * time.Minute)
		l.stop()
		for name, p := range map[string]Ownership{"marked": Marked, "deserted": Unreferenced, "shared": UnreferencedShared} {
			if got := s.after(name); got < p.minAge() || got > p.minAge()+2*leakScanInterval {
				t.Errorf("%s was removed after %v, its patience is %v", name, got, p.minAge())
			}
		}
		if swept != 3 {
			t.Errorf("%d counted", swept)
		}
	})
}

func TestLeakScansWithoutLeaksAreRareAndShallow(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeStrays()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(time.Minute)
		before, beforeDeep := s.looked()
		if beforeDeep < 3 {
			t.Errorf("%d deep looks after the start", beforeDeep)
		}
		time.Sleep(time.Hour)
		all, deep := s.looked()
		if n := all - before; n != 80 { // one per audit
			t.Errorf("%d looks in an hour", n)
		}
		if n := deep - beforeDeep; n < 5 || n > 6 {
			t.Errorf("%d deep looks in an hour", n)
		}
	})
}

func TestLeakScanKeepsObjectsOfCallsInProgress(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod := hostfake.PodOf("p", "a")
		h.Takes = hostfake.DurationByCall(map[string]time.Duration{"runSandbox uid-p": 3 * time.Minute})
		s := newFakeStrays()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(30 * time.Second)
		s.put("before", Marked)
		time.Sleep(time.Minute) // two audits
		if got := s.after("before"); got == 0 {
			t.Error("an object older than any call was not removed")
		}
		l.desire("file", pod)
		time.Sleep(time.Second)
		s.put("made by it", Marked)
		l.until(4*time.Minute, "p runs", l.isRunning(pod))
		if got := s.after("made by it"); got != 0 && got < 2*time.Minute+58*time.Second {
			t.Errorf("removed after %v, while the call was under way", got)
		}
		time.Sleep(2 * time.Minute)
		if s.after("made by it") == 0 {
			t.Error("it was never removed")
		}
	})
}

func TestFailedCallAndReconnectTriggerLeakScans(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeStrays()
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		for what, reason := range map[string]func(){
			"a failed call":    func() { l.agent.leaks.calls.done(errors.New("cut off")) },
			"the runtime back": func() { l.event("", runtimeEvent{Incomplete: true}) },
		} {
			time.Sleep(2 * time.Minute)
			_, before := s.looked()
			reason()
			time.Sleep(7 * time.Second)
			if _, deep := s.looked(); deep < before+2 {
				t.Errorf("%s: %d deep looks", what, deep-before)
			}
		}
	})
}

func TestFailedLeakRemovalIsRetried(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		s := newFakeStrays()
		s.put("stuck", Marked)
		s.broken["stuck"] = errors.New("a process survives")
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Leaks = s
		l.desire("file")
		time.Sleep(10 * time.Minute)
		if all, _ := s.looked(); all > 40 {
			t.Errorf("%d looks in 10 minutes", all)
		}
		s.mu.Lock()
		delete(s.broken, "stuck")
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if s.after("stuck") == 0 {
			t.Error("it was not tried again")
		}
	})
}
