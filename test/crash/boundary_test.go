package crash

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth/test/hosts"
)

// TestKilledAtEveryBoundary kills the agent before and after every action of a
// pod's way up and of its way down, one after the other.
func TestKilledAtEveryBoundary(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, tags: []string{"crashpoints"}})
			ups, downs := 0, 0
			for point, up, down := 1, true, true; up || down; point++ {
				if point > 200 {
					t.Fatal("the points do not come to an end")
				}
				name := fmt.Sprintf("walk-%d", point)
				if up = up && n.killedOnTheWayUp(name, point); up {
					ups++
				} else if n.pods()[name].Name == "" {
					n.put(name, n.rich(name)...)
					n.awaitRunning(20*time.Second, name)
				}
				if down = down && n.killedOnTheWayDown(name, point); down {
					downs++
				} else if n.pods()[name].Name != "" {
					n.drop(name)
				}
				n.gone(20 * time.Second)
				if t.Failed() {
					return
				}
			}
			t.Logf("killed at %d points on the way up, %d on the way down", ups, downs)
			if ups < 20 || downs < 20 {
				t.Error("there are fewer points than actions: the agent was not built with them?")
			}
		})
	}
}

// killedOnTheWayUp reports whether the pod has that many points on its way up.
func (n *node) killedOnTheWayUp(name string, point int) bool {
	n.Helper()
	n.relaunch(fmt.Sprint("BERTH_CRASH=", point))
	n.put(name, n.rich(name)...)
	died := n.diesOr(name+" runs", func() bool { return n.running(name) })
	var before map[string]string
	if died {
		before = n.living(name)
		n.agent.SetEnv()
		n.launch()
	}
	n.awaitRunning(20*time.Second, name)
	n.stillLiving(before)
	n.once(name)
	if n.Failed() {
		n.Fatalf("killed on the way up at %s", n.died())
	}
	return died
}

func (n *node) killedOnTheWayDown(name string, point int) bool {
	n.Helper()
	n.relaunch(fmt.Sprint("BERTH_CRASH=", point))
	n.awaitRunning(10*time.Second, name)
	n.once(name)
	n.drop(name)
	died := n.diesOr(name+" is gone", func() bool { p := n.pods(); return p != nil && p[name].Name == "" })
	if died {
		n.agent.SetEnv()
		n.launch()
	}
	n.gone(20 * time.Second)
	for _, c := range []string{"init", "side", "main", "second"} {
		if ran := n.ran(name, c); ran != 1 {
			n.Errorf("%s of %s really ran %d times", c, name, ran)
		}
	}
	if n.Failed() {
		n.Fatalf("killed on the way down at %s", n.died())
	}
	return died
}

// relaunch kills the agent and starts it in another environment.
func (n *node) relaunch(env ...string) {
	n.Helper()
	n.kill()
	n.agent.SetEnv(env...)
	n.launch()
}

// diesOr waits for the agent's death or for a condition.
func (n *node) diesOr(what string, cond func() bool) (died bool) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 30*time.Second)
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

// died is the point at which the agent died last.
func (n *node) died() string {
	log := n.agent.Log()
	if at := strings.LastIndex(log, "crash at point "); at >= 0 {
		line, _, _ := strings.Cut(log[at:], "\n")
		return line
	}
	return "no point"
}
