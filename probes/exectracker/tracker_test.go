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

// runtime is a fake that returns from commands after a delay and runs nothing.
type runtime struct {
	takes time.Duration
	err   error
	asked int
	lost  error // of Process
	deaf  bool  // it answers nothing else either
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
	r.asked++
	return 0, r.lost
}

func (r *runtime) Version(ctx context.Context) (name, version string, err error) {
	if !r.deaf {
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

func failed(k plan.ErrorKind) error { return &plan.Error{Kind: k, Err: errors.New("so it is")} }

func TestExecSyncErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		rt    runtime
		limit time.Duration
		gone  time.Duration  // when the caller cancels
		kind  plan.ErrorKind // of the error; Other: none
		notes int            // that are left
	}{
		{name: "by itself", limit: 2 * time.Second, kind: plan.Other},
		{name: "by itself, with no limit", rt: runtime{takes: time.Hour}, kind: plan.Other},
		{name: "at its limit", rt: runtime{takes: 2 * time.Second, err: failed(plan.Timeout)}, limit: 2 * time.Second, kind: plan.Timeout},
		{name: "before its limit, with the runtime", rt: runtime{takes: time.Second, err: failed(plan.Timeout)}, limit: 2 * time.Second, kind: plan.Unavailable, notes: 1},
		{name: "not at all, in the hands of a runtime that is well", rt: runtime{takes: 12 * time.Second, err: failed(plan.Timeout)}, limit: 2 * time.Second, kind: plan.Timeout, notes: 1},
		{name: "long after its limit, with the runtime", rt: runtime{takes: 12 * time.Second, err: failed(plan.Timeout), deaf: true}, limit: 2 * time.Second, kind: plan.Unavailable, notes: 1},
		{name: "with the runtime, with no limit", rt: runtime{takes: time.Second, err: failed(plan.Timeout)}, kind: plan.Unavailable, notes: 1},
		{name: "canceled", rt: runtime{takes: time.Hour}, gone: time.Minute, kind: plan.Canceled, notes: 1},
		{name: "with its container", rt: runtime{err: failed(plan.NotFound)}, kind: plan.NotFound},
		{name: "never started", rt: runtime{err: failed(plan.Invalid)}, kind: plan.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "commands")
				c.rt.lost = failed(plan.NotFound)
				r := New(Options{Runtime: &c.rt, Dir: dir})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.gone > 0 {
					time.AfterFunc(c.gone, cancel)
				}
				out, _, code, err := r.ExecSync(ctx, "c", []string{"a"}, c.limit)
				if c.kind == plan.Other && (err != nil || string(out) != "out" || code != 3) ||
					c.kind != plan.Other && plan.KindOf(err) != c.kind {
					t.Errorf("%q %d %v", out, code, err)
				}
				if n := files(t, dir); n != c.notes {
					t.Errorf("%d notes are left, want %d", n, c.notes)
				}
			})
		})
	}
}

// TestInterruptedExecIsCleanedUpOnce: the note stays while the runtime is away, over
// as many lives as that takes.
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
		if rt.asked < 4 || rt.asked > 5 || files(t, dir) != 1 {
			t.Errorf("unavailable runtime: %d calls, %d records", rt.asked, files(t, dir))
		}
		if err := os.WriteFile(filepath.Join(dir, "half.json"), []byte(`{"contai`), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "old.json"), []byte(`{"container":"c","boot":"another"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		next := New(Options{Runtime: rt, Dir: dir})
		if files(t, dir) != 1 {
			t.Errorf("%d records: obsolete ones remain", files(t, dir))
		}
		rt.lost, rt.asked = failed(plan.Other), 0
		live(next, 2500*time.Millisecond)
		if rt.asked < 3 || files(t, dir) != 1 {
			t.Errorf(
				"starting runtime: %d calls, %d records: its errors do not mean that the container is gone",
				rt.asked,
				files(t, dir),
			)
		}
		rt.lost = failed(plan.NotFound)
		live(next, time.Second)
		if files(t, dir) != 0 || len(next.interrupted) != 0 {
			t.Error("the container is gone, but the cleanup continues")
		}
	})
}

// TestCurrentExecIsNotMistakenForInterrupted is M3.
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
		t.Errorf("with another beside it: %d %v", until, crowded)
	}
	r.execEnded(beside, false)
	next := &record{Container: "c", RequestedAt: sinceBoot(time.Now()) + time.Second}
	r.execStarted(next)
	if until, crowded := r.startBounds(r.interrupted[0]); until != next.RequestedAt || crowded {
		t.Errorf("with a later one: %d %v, want %d", until, crowded, next.RequestedAt)
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

// TestUserExecsExpire: a user's last command leaves no note for ever, also
// while a command hangs in another container.
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
		t.Errorf("%d notes are left, and %v", left, r.userExecs)
	}
	r.execEnded(hung, false)
}
