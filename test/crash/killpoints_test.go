package crash

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"berth/test/hosts"
)

// TestKillAtEveryActionBoundary kills the agent before and after every action of a
// pod's way up and of its way down, one after the other, and by name after those
// of the kinds walked that came about elsewhere each time: what a pod does at
// once has no order.
func TestKillAtEveryActionBoundary(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			ups, downs, after := 0, 0, map[string]int{}
			for point, up, down := 1, true, true; up || down; point++ {
				if point > 200 {
					t.Fatal("the points do not come to an end")
				}
				up, down = n.killOnce(fmt.Sprintf("walk-%d", point), fmt.Sprint(point), up, down, after)
				if up {
					ups++
				}
				if down {
					downs++
				}
				if t.Failed() {
					return
				}
			}
			for _, kind := range walked {
				if after[kind] == 0 {
					n.killOnce("walk-"+strings.ToLower(kind), "after "+kind+" ", true, true, after)
				}
				if after[kind] == 0 {
					t.Errorf("never killed after %s", kind)
				}
			}
			t.Logf("killed at %d points on the way up, %d on the way down; after %v", ups, downs, after)
			if ups < 20 || downs < 20 {
				t.Error("there are fewer points than actions: the agent was not built with them?")
			}
		})
	}
}

// killOnce has a pod come and go, and the agent die at a point of its way up, of its
// way down, or of both. It reports whether there were such points, and counts
// after what the agent has died.
func (n *node) killOnce(name, point string, up, down bool, after map[string]int) (upToo, downToo bool) {
	n.Helper()
	note := func(died bool) bool {
		if kind, ok := strings.CutPrefix(n.lastKillPoint(), "after "); died && ok {
			kind, _, _ = strings.Cut(kind, " ")
			after[kind]++
		}
		return died
	}
	if up && !note(n.killDuringStart(name, point)) {
		up = false
	}
	if n.pods()[name].Name == "" {
		n.put(name, n.rich(name)...)
		n.awaitRunning(name)
	}
	if down && !note(n.killDuringStop(name, point)) {
		down = false
	}
	if n.pods()[name].Name != "" {
		n.removeManifest(name)
	}
	n.waitNothingLeft()
	return up, down
}

// killDuringStart reports whether the pod has that point on its way up.
func (n *node) killDuringStart(name, point string) bool {
	n.Helper()
	n.restartWithEnv("BERTH_CRASH=" + point)
	n.put(name, n.rich(name)...)
	died := n.waitExitOr(name+" runs", func() bool { return n.running(name) })
	var before map[string]string
	if died {
		before = n.liveObjects(name)
		n.agent.SetEnv()
		n.launch()
	} else {
		n.restartWithEnv() // else it might die on the way down
	}
	n.awaitRunning(name)
	n.checkStillLive(before)
	n.checkRanOnce(name)
	if n.Failed() {
		n.Fatalf("killed on the way up at %s", n.lastKillPoint())
	}
	return died
}

func (n *node) killDuringStop(name, point string) bool {
	n.Helper()
	n.restartWithEnv("BERTH_CRASH=" + point)
	n.awaitRunning(name)
	n.checkRanOnce(name)
	n.removeManifest(name)
	died := n.waitExitOr(name+" is gone", func() bool { p := n.pods(); return p != nil && p[name].Name == "" })
	if died {
		n.agent.SetEnv()
		n.launch()
	}
	n.waitNothingLeft()
	for _, c := range []string{"init", "side", "main", "second"} {
		if ran := n.startCount(name, c); ran != 1 {
			n.Errorf("%s of %s really ran %d times", c, name, ran)
		}
	}
	if n.Failed() {
		n.Fatalf("killed on the way down at %s", n.lastKillPoint())
	}
	return died
}

// restartWithEnv kills the agent and starts it in another environment.
func (n *node) restartWithEnv(env ...string) {
	n.Helper()
	n.kill()
	n.agent.SetEnv(env...)
	n.launch()
}

// waitExitOr waits for the agent's death or for a condition.
func (n *node) waitExitOr(what string, cond func() bool) (died bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), waitTimeout)
	defer cancel()
	exited := n.agent.Exited()
	err := hosts.WaitFor(ctx, "the agent to die, or "+what, func() (bool, error) {
		select {
		case <-exited:
			died = true
			return true, nil
		default:
			return cond(), nil
		}
	})
	if err != nil {
		n.Fatalf("%v\n%s", err, n.describe())
	}
	return died
}

// lastKillPoint is the point at which the agent died last: "after StopSandbox stop/ID".
func (n *node) lastKillPoint() string {
	log := n.agent.Log()
	if at := strings.LastIndex(log, "crash at point "); at >= 0 {
		line, _, _ := strings.Cut(log[at+len("crash at point "):], "\n")
		_, point, _ := strings.Cut(line, " ")
		return point
	}
	return "no point"
}
