package crash

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"berth/test/hosts"
)

// TestKillAtEveryActionBoundary kills the agent before and after every action of a pod's start and of its
// termination, one kill point at a time. The order of concurrent actions varies, so a kind in boundaryKinds
// may be missed. The test then kills the agent after an action of this kind by name. Without BERTH_TORTURE, the
// kill points before and after an action take turns.
func TestKillAtEveryActionBoundary(t *testing.T) {
	t.Parallel()
	all, wantKills := os.Getenv("BERTH_TORTURE") != "", 10
	if all {
		wantKills = 20
	}
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			startKills, stopKills, killedAfter := 0, 0, map[string]int{}
			for point, onStart, onStop := 1, true, true; onStart || onStop; point++ {
				if point > 200 {
					t.Fatal("got more than 200 kill points")
				}
				if action := (point - 1) / 2; !all && (point+action)%2 == 0 { // an action has two points
					continue
				}
				onStart, onStop = n.killOnce(fmt.Sprintf("killpoint-%d", point), fmt.Sprint(point), onStart, onStop,
					killedAfter)
				if onStart {
					startKills++
				}
				if onStop {
					stopKills++
				}
				if t.Failed() {
					return
				}
			}
			for _, kind := range boundaryKinds {
				if killedAfter[kind] == 0 {
					n.killOnce("killpoint-"+strings.ToLower(kind), "after "+kind+" ", true, true, killedAfter)
				}
				if killedAfter[kind] == 0 {
					t.Errorf("no kill after action %s", kind)
				}
			}
			t.Logf("kills: %d during start, %d during termination; after actions: %v", startKills, stopKills,
				killedAfter)
			if startKills < wantKills || stopKills < wantKills {
				t.Error("got fewer kill points than actions; the agent may have been built without the tag crashpoints")
			}
		})
	}
}

// killOnce starts and terminates a pod. It kills the agent at the kill point during the start, the
// termination, or both. It returns whether the kill point was reached in each of them. It counts the actions
// that the agent was killed after in killedAfter.
func (n *node) killOnce(name, point string, onStart, onStop bool,
	killedAfter map[string]int) (hitOnStart, hitOnStop bool) {
	n.Helper()
	record := func(exited bool) bool {
		if kind, ok := strings.CutPrefix(n.lastKillPoint(), "after "); exited && ok {
			kind, _, _ = strings.Cut(kind, " ")
			killedAfter[kind]++
		}
		return exited
	}
	if onStart && !record(n.killDuringStart(name, point)) {
		onStart = false
	}
	if n.pods()[name].Name == "" {
		n.put(name, n.rich(name)...)
		n.awaitRunning(name)
	}
	if onStop && !record(n.killDuringStop(name, point)) {
		onStop = false
	}
	if n.pods()[name].Name != "" {
		n.removeManifest(name)
	}
	n.waitNothingLeft()
	return onStart, onStop
}

// killDuringStart starts a pod and reports whether the agent was killed at the kill point.
func (n *node) killDuringStart(name, point string) bool {
	n.Helper()
	n.restartWithEnv("BERTH_CRASH=" + point)
	n.put(name, n.rich(name)...)
	exited := n.waitExitOr(name+" to run", func() bool { return n.running(name) })
	var before map[string]string
	if exited {
		before = n.liveObjects(name)
		n.agent.SetEnv()
		n.launch()
	} else {
		n.restartWithEnv() // otherwise the kill point may be hit during termination
	}
	n.awaitRunning(name)
	n.checkStillLive(before)
	n.checkRanOnce(name)
	if n.Failed() {
		n.Fatalf("killed during start at %s", n.lastKillPoint())
	}
	return exited
}

// killDuringStop terminates a pod and reports whether the agent was killed at the kill point.
func (n *node) killDuringStop(name, point string) bool {
	n.Helper()
	n.restartWithEnv("BERTH_CRASH=" + point)
	n.awaitRunning(name)
	n.checkRanOnce(name)
	n.removeManifest(name)
	exited := n.waitExitOr(name+" to be deleted", func() bool { p := n.pods(); return p != nil && p[name].Name == "" })
	if exited {
		n.agent.SetEnv()
		n.launch()
	}
	n.waitNothingLeft()
	for _, c := range []string{"init", "side", "main", "second"} {
		if ran := n.startCount(name, c); ran != 1 {
			n.Errorf("%s/%s: got %d starts, want 1", name, c, ran)
		}
	}
	if n.Failed() {
		n.Fatalf("killed during termination at %s", n.lastKillPoint())
	}
	return exited
}

// restartWithEnv kills the agent and starts it with other environment variables.
func (n *node) restartWithEnv(env ...string) {
	n.Helper()
	n.kill()
	n.agent.SetEnv(env...)
	n.launch()
}

// waitExitOr waits until the agent exits or a condition is true. It reports whether the agent exited.
func (n *node) waitExitOr(what string, cond func() bool) (exited bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), waitTimeout)
	defer cancel()
	exit := n.agent.Exited()
	err := hosts.WaitFor(ctx, "agent to exit or "+what, func() (bool, error) {
		select {
		case <-exit:
			exited = true
			return true, nil
		default:
			return cond(), nil
		}
	})
	if err != nil {
		n.Fatalf("%v\n%s", err, n.describe())
	}
	return exited
}

// lastKillPoint returns the last kill point that the agent logged, such as "after StopSandbox stop/ID".
func (n *node) lastKillPoint() string {
	log := n.agent.Log()
	if at := strings.LastIndex(log, "crash at point "); at >= 0 {
		line, _, _ := strings.Cut(log[at+len("crash at point "):], "\n")
		_, point, _ := strings.Cut(line, " ")
		return point
	}
	return "no kill point"
}
