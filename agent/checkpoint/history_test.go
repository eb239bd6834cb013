package checkpoint

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// history returns a history with one part.
func history(text string) func() History {
	return func() History { return History{Events: []byte(text)} }
}

func TestHistoriesAreCommittedInBatches(t *testing.T) { // C8
	o := options(t)
	o.HistoryDelay = 50 * time.Millisecond
	s := open(t, o)
	stop := run(t, s)
	for _, uid := range []types.UID{"a", "b"} {
		if err := s.Sync(t.Context(), uid, record(string(uid))); err != nil {
			t.Fatal(err)
		}
	}
	before := commits(t, s)
	for range 1000 {
		s.PutHistory("a", history("of a"))
		s.PutHistory("b", history("of b"))
		s.PutHistory("unknown", history("of unknown"))
	}
	eventually(t, "the histories on disk", func() bool { return string(load(t, s)["b"].Events) == "of b" })
	if n := commits(t, s) - before; n != 1 {
		t.Errorf("%d commits for many changes, want 1", n)
	}
	want := map[types.UID]Record{"a": record("a"), "b": record("b")}
	for uid, r := range want {
		r.Events = []byte("of " + string(uid))
		want[uid] = r
	}
	if d := cmp.Diff(want, load(t, s)); d != "" {
		t.Error(d)
	}
	s.PutHistory("a", history("more of a"))
	s.PutHistory("b", history("more of b"))
	s.Delete("b")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got := load(t, open(t, o))
	if string(got["a"].Events) != "more of a" || len(got) != 1 {
		t.Errorf("the last history is not on disk: %v", got)
	}
}

func TestSyncDoesNotWaitForHistory(t *testing.T) { // C8
	o := options(t)
	o.HistoryDelay = time.Hour
	s := open(t, o)
	run(t, s)
	called := make(chan struct{}, 1)
	s.PutHistory("a", func() History {
		called <- struct{}{}
		return History{}
	})
	for range 20 {
		if err := s.Sync(t.Context(), "a", record("a")); err != nil {
			t.Fatal(err)
		}
	}
	if len(called) > 0 {
		t.Error("a history was written while a caller waited for a record")
	}
}

func TestHistoriesSurviveFullDisk(t *testing.T) { // C5
	dir := smallDisk(t, "1m")
	o := options(t)
	o.Path, o.PreallocateBytes, o.HistoryDelay = dir+"/berth.db", -1, time.Millisecond
	s := open(t, o)
	stop := run(t, s)
	if err := s.Sync(t.Context(), "a", record("a")); err != nil {
		t.Fatal(err)
	}
	ballast := fill(t, dir)
	s.Put("b", big("b"))
	s.PutHistory("a", func() History { return History{Events: make([]byte, 64<<10), Reported: []byte("told")} })
	eventually(t, "the store to be degraded", func() bool { bad, _ := s.Degraded(); return bad })
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the history on disk", func() bool { return string(load(t, s)["a"].Reported) == "told" })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestPreviousRun(t *testing.T) {
	o := options(t)
	s := open(t, o)
	if last := s.PreviousRun(); last != (PreviousRun{}) {
		t.Errorf("previous run of a new store: %+v", last)
	}
	if err := run(t, s)(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if last := s.PreviousRun(); !last.CleanExit || time.Since(last.EndedAt) > time.Minute {
		t.Errorf("after a clean exit: %+v", last)
	}
	run(t, s)
	if err := s.Sync(t.Context(), "a", record("a")); err != nil {
		t.Fatal(err)
	}
	kill(t, s)
	s = open(t, o)
	if last := s.PreviousRun(); last.CleanExit || last.EndedAt.IsZero() || time.Since(last.EndedAt) > time.Minute {
		t.Errorf("after a kill: %+v", last)
	}
	if err := run(t, s)(); err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	run(t, s)
	if err := s.Flush(t.Context()); err != nil { // Run is running and has not written anything
		t.Fatal(err)
	}
	kill(t, s)
	if last := open(t, o).PreviousRun(); last.CleanExit {
		t.Errorf("after a clean exit and a kill without writes: %+v", last)
	}
}

// kill closes a store like the kernel does when the agent is killed.
func kill(t *testing.T, s *Store) {
	t.Helper()
	s.mu.Lock()
	f := s.file
	s.file = nil
	s.mu.Unlock()
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
}
