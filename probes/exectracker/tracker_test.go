package exectracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/plan"
)

// runtime is a fake runtime that returns from ExecSync after a delay without running a command.
type runtime struct {
	takes        time.Duration
	err          error
	calls        int
	lost         error // of Process
	unresponsive bool  // Version fails, too
}

func (r *runtime) ExecSync(ctx context.Context, _ string, _ []string, _ time.Duration) ([]byte, []byte, int32, error) {
	select {
	case <-ctx.Done():
		return nil, nil, 0, &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	case <-time.After(r.takes):
		return []byte("out"), []byte("err"), 3, r.err
	}
}

func (r *runtime) ContainerPID(context.Context, string) (int, error) {
	r.calls++
	return 0, r.lost
}

func (r *runtime) Version(ctx context.Context) (name, version string, err error) {
	if !r.unresponsive {
		return "a", "1", nil
	}
	<-ctx.Done()
	return "", "", &plan.Error{Kind: plan.Timeout, Err: ctx.Err()}
}

func files(t *testing.T, dir string) int {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func failed(k plan.ErrorKind) error { return &plan.Error{Kind: k, Err: errors.New("failed")} }

func TestExecSyncErrors(t *testing.T) {
	for _, c := range []struct {
		name        string
		rt          runtime
		timeout     time.Duration
		cancelAfter time.Duration  // when the caller cancels
		kind        plan.ErrorKind // of the error; Other: none
		records     int            // remaining records
	}{
		{name: "command exits", timeout: 2 * time.Second, kind: plan.Other},
		{name: "command exits, no timeout", rt: runtime{takes: time.Hour}, kind: plan.Other},
		{name: "timeout", rt: runtime{takes: 2 * time.Second, err: failed(plan.Timeout)}, timeout: 2 * time.Second,
			kind: plan.Timeout},
		{name: "runtime fails before the timeout", rt: runtime{takes: time.Second, err: failed(plan.Timeout)},
			timeout: 2 * time.Second, kind: plan.Unavailable, records: 1},
		{name: "command cannot be killed, runtime responds",
			rt: runtime{takes: 12 * time.Second, err: failed(plan.Timeout)}, timeout: 2 * time.Second,
			kind: plan.Timeout, records: 1},
		{name: "runtime fails long after the timeout", rt: runtime{takes: 12 * time.Second, err: failed(plan.Timeout),
			unresponsive: true}, timeout: 2 * time.Second, kind: plan.Unavailable, records: 1},
		{name: "runtime fails, no timeout", rt: runtime{takes: time.Second, err: failed(plan.Timeout)},
			kind: plan.Unavailable, records: 1},
		{name: "canceled", rt: runtime{takes: time.Hour}, cancelAfter: time.Minute, kind: plan.Canceled, records: 1},
		{name: "container removed", rt: runtime{err: failed(plan.NotFound)}, kind: plan.NotFound},
		{name: "never started", rt: runtime{err: failed(plan.Invalid)}, kind: plan.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "commands")
				c.rt.lost = failed(plan.NotFound)
				r := New(Options{Runtime: &c.rt, Dir: dir})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancelAfter > 0 {
					time.AfterFunc(c.cancelAfter, cancel)
				}
				out, _, code, err := r.ExecSync(ctx, "c", []string{"a"}, c.timeout)
				if c.kind == plan.Other && (err != nil || string(out) != "out" || code != 3) ||
					c.kind != plan.Other && plan.KindOf(err) != c.kind {
					t.Errorf("got output %q, exit code %d, error %v, want kind %d", out, code, err, c.kind)
				}
				if n := files(t, dir); n != c.records {
					t.Errorf("got %d records, want %d", n, c.records)
				}
			})
		})
	}
}

// TestInterruptedExecIsCleanedUpOnce checks that the record is kept while the runtime is unavailable,
// also across agent restarts.
func TestInterruptedExecIsCleanedUpOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "commands")
		rt := &runtime{takes: time.Second / 2, err: failed(plan.Unavailable), lost: failed(plan.Unavailable)}
		r := New(Options{Runtime: rt, Dir: dir})
		if _, _, _, err := r.ExecSync(t.Context(), "c", []string{"a"}, 0); err == nil {
			t.Fatal("no error")
		}
		live := func(r *Tracker, d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		}
		live(r, 3500*time.Millisecond)
		if rt.calls < 4 || rt.calls > 5 || files(t, dir) != 1 {
			t.Errorf("unavailable runtime: %d calls, %d records", rt.calls, files(t, dir))
		}
		if err := os.WriteFile(filepath.Join(dir, "half.json"), []byte(`{"contai`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "old.json"), []byte(`{"container":"c","boot":"another"}`),
			0o600); err != nil {
			t.Fatal(err)
		}
		next := New(Options{Runtime: rt, Dir: dir})
		if files(t, dir) != 1 {
			t.Errorf("%d records: obsolete ones remain", files(t, dir))
		}
		rt.lost, rt.calls = failed(plan.Other), 0
		live(next, 2500*time.Millisecond)
		if rt.calls < 3 || files(t, dir) != 1 {
			t.Errorf(
				"starting runtime: got %d calls and %d records; its errors do not mean that the container is deleted",
				rt.calls,
				files(t, dir),
			)
		}
		rt.lost = failed(plan.NotFound)
		live(next, time.Second)
		if files(t, dir) != 0 || len(next.interrupted) != 0 {
			t.Error("the cleanup continues after the removal of the container")
		}
	})
}

// TestCurrentExecIsNotMistakenForInterrupted checks M3.
func TestCurrentExecIsNotMistakenForInterrupted(t *testing.T) {
	t.Parallel()
	r := New(Options{Runtime: &runtime{}, Dir: t.TempDir()})
	old := &record{Container: "c", RequestedAt: 100}
	r.execStarted(old)
	beside := &record{Container: "c", RequestedAt: 200}
	r.execStarted(beside)
	other := &record{Container: "other", RequestedAt: 300}
	r.execStarted(other)
	r.execEnded(old, true)
	if until, crowded := r.startBounds(r.interrupted[0]); until != noLimit || !crowded {
		t.Errorf("with a concurrent command: got %d %v", until, crowded)
	}
	r.execEnded(beside, false)
	next := &record{Container: "c", RequestedAt: sinceBoot(time.Now()) + time.Second}
	r.execStarted(next)
	if until, crowded := r.startBounds(r.interrupted[0]); until != next.RequestedAt || crowded {
		t.Errorf("with a later command: got %d %v, want %d", until, crowded, next.RequestedAt)
	}
}

func TestUserExecsAreNotKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := New(Options{Dir: dir})
	r.TrackUserExec("c", []string{"his", "words"})
	r.TrackUserExec("other", nil)
	all := New(Options{Dir: dir}).userExecsIn("c") // after a restart
	if len(all) != 1 || len(New(Options{Dir: dir}).interrupted) != 0 {
		t.Fatalf("the restarted tracker has %+v", all)
	}
	self := os.Getpid() // has another command line
	at := all[0].RequestedAt
	for _, row := range []struct {
		started time.Duration
		words   []string
		may     bool
	}{
		{at + time.Second, []string{"the", "agent's"}, true},
		{at + time.Minute, []string{"the", "agent's"}, true},
		{at - time.Second, []string{"the", "agent's"}, false},
		{at + 2*time.Minute, []string{"the", "agent's"}, false},
		{at + time.Second, os.Args, false}, // the agent's command, not the user's
	} {
		if got := all.mayMatch(process{pid: self, started: row.started}, row.words); got != row.may {
			t.Errorf("started %s after the request, %q: %v", row.started-at, row.words, got)
		}
	}
	r.mu.Lock()
	r.running[&record{Container: "c", RequestedAt: at}] = struct{}{}
	beside := r.expireUserExecs(at + time.Hour)
	clear(r.running)
	after := r.expireUserExecs(at + time.Hour)
	r.mu.Unlock()
	if len(beside) != 1 || beside[0].Container != "other" || len(after) != 1 || after[0].Container != "c" {
		t.Errorf(
			"beside a command of their time in the container c these grants were forgotten: %v, after it %v",
			beside,
			after,
		)
	}
}

// TestUserExecsExpire checks that the record of the last user exec expires, also while a command
// hangs in another container.
func TestUserExecsExpire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := New(Options{Dir: dir, Runtime: &runtime{}})
	r.TrackUserExec("c", []string{"his"})
	r.TrackUserExec("c", []string{"hers"})
	hung := &record{Container: "other"}
	r.execStarted(hung)
	for _, g := range r.userExecs {
		g.RequestedAt -= 2 * userExecWindow
	}
	if _, _, _, err := r.ExecSync(t.Context(), "c", []string{"probe"}, time.Second); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); left != 1 || len(r.userExecs) != 0 {
		t.Errorf("got %d records and user execs %v, want none", left, r.userExecs)
	}
	r.execEnded(hung, false)
}

// TestCleanupOutlastsSlowRounds: on a busy machine, the first round takes longer than the cleanup window. It
// kills the leader of a session, and the leader's other children are killed when it is dead.
func TestCleanupOutlastsSlowRounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		after  time.Duration
		killed int
		want   bool
	}{
		{time.Second, 0, false}, {time.Second, 2, false},
		{3 * time.Second, 3, false}, {3 * time.Second, 0, true},
		{2 * time.Minute, 1, true}, // a process that does not die
	} {
		if got := isCleanedUp(c.after, c.killed); got != c.want {
			t.Errorf("isCleanedUp(%s, %d) = %v, want %v", c.after, c.killed, got, c.want)
		}
	}
}
