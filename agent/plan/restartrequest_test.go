package plan

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestRequestRestart(t *testing.T) {
	t.Parallel()
	two := mains(con("app"), con("b"))
	ask := func(w *driver, names ...string) *driver {
		return w.input(func(in *Input) {
			m, err := RequestRestart(*in, names)
			if err != nil {
				panic(err)
			}
			in.Memory = m
		})
	}
	runCases(t, []testCase{
		{"a running container is stopped with the pod's grace period", ask(up(two), "b"), "stop b-0 30s",
			[]string{`why    Killing b "Container b is restarted because a user requested it" (Normal)`}},
		{"… and started again, also under Never", ask(up(never, two), "b").begin().exit("b", 143), "start b#1",
			[]string{"pod    Running"}},
		{"without names all app containers and sidecars", ask(up(inits(con("one"), sidecar("side")), two)),
			"stop side-0 30s, stop app-0 30s, stop b-0 30s", nil},
		{"a crash back-off is skipped", ask(crashed(5).exit("app", 1), "app"), "start app#6",
			[]string{"!CrashLoopBackOff"}},
		{"… and starts from zero afterwards", ask(crashed(5).exit("app", 1), "app").begin().finish().exit("app", 1),
			"remove app-4, start app#7", nil},
		{"a completed container of a running pod runs again", ask(up(never, two).exit("app", 0), "app"), "start app#1",
			nil},
		{"a failing init container is retried immediately",
			ask(started("one", inits(con("one"))).exit("one", 1).begin().finish().exit("one", 1)), "start one#2", nil},
		{"a requested restart happens once", ask(up(two), "b").begin().exit("b", 0).begin().finish(), "-", nil},
	})
	for _, tt := range []struct {
		name  string
		w     *driver
		names []string
		err   string
	}{
		{"an unknown name", up(), []string{"nope"}, "pod web has no container nope"},
		{"an ephemeral container", up(ephemeral(con("debug"))), []string{"debug"}, "cannot be restarted"},
		{"a completed init container", up(inits(con("one"))), []string{"one"}, "has completed"},
		{"a running init container", started("one", inits(con("one"))), []string{"one"}, "is running"},
		{"a terminating pod", up().terminate("Deleted", time.Second), nil, "is terminating"},
		{"a completed pod", up(never).exit("app", 0).settle(), nil, "has completed"},
	} {
		before := tt.w.in.Memory.clone()
		_, err := RequestRestart(tt.w.in, tt.names)
		if err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.err)
		}
		if len(before.Restarts) != len(tt.w.in.Memory.Restarts) {
			t.Errorf("%s: the memory was modified", tt.name)
		}
	}
}

// TestStoredRestartReason decodes records of this release and of earlier ones.
func TestStoredRestartReason(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{"RestartRequested", "RestartAsked"} {
		var m Memory
		record := `{"Hooks":{"b":{"Attempt":2,"PreStop":1,"Why":"` + stored + `","Grace":3}}}`
		if err := json.Unmarshal([]byte(record), &m); err != nil {
			t.Fatal(err)
		}
		want := HookStatus{Attempt: 2, PreStop: HookPending, Reason: "RestartRequested", Grace: 3}
		if got := m.Hooks["b"]; got != want {
			t.Errorf("%s: got %+v, want %+v", stored, got, want)
		}
	}
}

// TestDeadContainersRemoved covers upstream's garbage collection of containers.
func TestDeadContainersRemoved(t *testing.T) {
	t.Parallel()
	// crashes is a running container with n dead instances.
	crashes := func(n int, opts ...func(*Limits)) *driver {
		w := up()
		for range n {
			w.input(func(in *Input) { in.Limits.MaxDeadContainers = 99 }).exit("app", 1)
			w.in.Now = w.in.Now.Add(time.Hour)
			w.begin().finish()
		}
		return w.input(func(in *Input) {
			in.Limits.MaxDeadContainers = 0
			for _, o := range opts {
				o(&in.Limits)
			}
		})
	}
	runCases(t, []testCase{
		{"one dead instance is kept", crashes(3), "remove app-1, remove app-0", nil},
		{"the number of dead instances is configurable", crashes(3, func(l *Limits) { l.MaxDeadContainers = 2 }),
			"remove app-0", nil},
		{"a recent dead instance is kept", crashes(3, func(l *Limits) { l.DeadContainerMinAge = 24 * time.Hour }), "-",
			[]string{"wake   at+24h"}},
		{"… until its minimum age", crashes(3, func(l *Limits) { l.DeadContainerMinAge = 90 * time.Minute }),
			"remove app-1, remove app-0", nil},
	})
}

func TestWillRestart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		w    *driver
		want bool
	}{
		{"a running container", up(), true},
		{"a crash under Always", up().exit("app", 1), true},
		{"a crash under Never", up(never).exit("app", 1), false},
		{"a terminating pod", up().terminate("Deleted", time.Second).begin().exit("app", 0), false},
		{"a completed pod", up(onFailure).exit("app", 0).settle(), false},
	} {
		if got := WillRestart(tt.w.in, "app"); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
	if WillRestart(up().in, "nope") {
		t.Error("an unknown container restarts")
	}
}
