package exits

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeRuntime maps container IDs to test processes.
type fakeRuntime struct {
	mu   sync.Mutex
	pids map[string]int
}

func (w *fakeRuntime) process(_ context.Context, id string) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pid, ok := w.pids[id]; ok {
		return pid, nil
	}
	return 0, errors.New("no such container")
}

// startProcess starts a shell that executes a command when its input is closed.
func (w *fakeRuntime) startProcess(t *testing.T, id, script string) (cmd *exec.Cmd, end func()) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), "sh", "-c", "read x; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids[id] = cmd.Process.Pid
	return cmd, func() { _ = in.Close() }
}

func startWatcher(t *testing.T, w *fakeRuntime) *Watcher {
	t.Helper()
	e := New(Options{Process: w.process})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return e
}

// handles counts the handles.
func (e *Watcher) handles() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.by)
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout waiting for %s", what)
		}
	}
}

// supported reports whether this kernel reports exit codes of processes reaped by others.
func supported(t *testing.T) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(fd)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	_, known, _ := exitInfo(fd)
	return known
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	if !supported(t) {
		t.Skip("kernel without exit codes by pidfd")
	}
	w := &fakeRuntime{pids: map[string]int{}}
	e := startWatcher(t, w)
	startedAt := time.Now()
	seven, stopSeven := w.startProcess(t, "seven", "exit 7")
	killed, _ := w.startProcess(t, "killed", "")
	zero, stopZero := w.startProcess(t, "zero", "exit 0")
	for _, id := range []string{"seven", "killed", "zero", "seven", "unknown"} {
		e.Watch(id)
	}
	until(t, "three handles", func() bool { return e.handles() == 3 })
	if _, _, ok := e.ExitStatus("seven"); ok {
		t.Error("running container has an exit status")
	}
	before := time.Now()
	stopSeven()
	until(t, "the exit to be observed", func() bool { _, at, _ := e.ExitStatus("seven"); return !at.IsZero() })
	if _, at, ok := e.ExitStatus("seven"); ok || at.Before(before) {
		t.Errorf("before the process was reaped: %v %v", at, ok)
	}
	stopZero()
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{seven, killed, zero} {
		_ = cmd.Wait() // the exit code is read by the Watcher
	}
	for id, want := range map[string]int32{"seven": 7, "killed": 137, "zero": 0} {
		if code, at, ok := e.ExitStatus(id); !ok || code != want {
			t.Errorf("%s: got %d %v %v, want exit code %d", id, code, at, ok, want)
		}
	}
	until(t, "no handle to be open", func() bool { return e.handles() == 0 })
	e.Retain(map[string]bool{"zero": true}, time.Now())
	if _, _, ok := e.ExitStatus("seven"); ok {
		t.Error("a deleted container is still watched")
	}
	if _, _, ok := e.ExitStatus("zero"); !ok {
		t.Error("exit status of an existing container was dropped")
	}
	e.Retain(nil, startedAt)
	if _, _, ok := e.ExitStatus("zero"); !ok {
		t.Error("container that started after the list was dropped")
	}
}

// TestUnknownExitStatus covers an unknown container, and a process ID that was reused before it was opened.
func TestUnknownExitStatus(t *testing.T) {
	t.Parallel()
	n := 0
	e := New(Options{Process: func(context.Context, string) (int, error) { n++; return os.Getpid() + n - 1, nil }})
	h := &handle{id: "without cgroup", fd: -1}
	e.watched[h.id] = h
	if err := e.open(t.Context(), h); !errors.Is(err, errOther) {
		t.Errorf("reused process ID: %v", err)
	}
	if _, _, ok := e.ExitStatus("other"); ok {
		t.Error("unwatched container has an exit status")
	}
	e.release("stopped")
	e.Watch("c")
	if len(e.watched) != 0 {
		t.Error("container is watched after the Watcher stopped")
	}
}
