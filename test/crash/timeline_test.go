package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTimelineAndEventsSurviveAgentRestart: the timeline and the events of a pod are kept across a stop and a kill
// of the agent. The timeline contains the restart of the agent.
func TestTimelineAndEventsSurviveAgentRestart(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("web"))
	n.awaitRunning("web")
	n.waitStoreIdle()
	for _, c := range []struct {
		how, cause string
		stop       func()
	}{
		{"killed", "the agent was killed or crashed", n.kill},
		{"stopped", "the agent was stopped and started again", func() {
			n.must("stop the agent", n.agent.Stop(t.Context()))
		}},
		{"killed again", "the agent was killed or crashed", n.kill},
	} {
		n.waitStoreIdle()
		c.stop()
		n.launch()
		n.awaitRunning("web")
		n.checkOutput([]string{"timeline", "web"}, "start main", "RunPodSandbox", "StartContainer", "restart agent",
			c.cause)
		events := n.checkOutput([]string{"describe", "web"}, "Events:", "Pulled", "Created", "Started")
		if k := strings.Count(events, "Started container"); k != 1 {
			t.Errorf("agent was %s: got %d Started events, want 1\n%s", c.how, k, events)
		}
		if t.Failed() {
			t.Fatalf("agent was %s", c.how)
		}
	}
	n.checkRanOnce("web")
	n.removeManifest("web")
	n.waitNothingLeft()
}

// waitStoreIdle waits until the store has not been written for 5 s, so that it contains all events. The agent of a busy
// machine writes them late.
func (n *node) waitStoreIdle() {
	n.Helper()
	n.waitFor("store to be idle", func() bool {
		st, err := os.Stat(filepath.Join(n.agent.StateDir, "berth.db"))
		return err == nil && time.Since(st.ModTime()) > 5*time.Second
	})
}

// checkOutput runs a berth command and checks that its output contains all words. It returns the output.
func (n *node) checkOutput(args []string, words ...string) string {
	n.Helper()
	out, err := n.agent.Command(n.Context(), args...).CombinedOutput()
	n.must(strings.Join(args, " "), err)
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			n.Errorf("berth %s: output does not contain %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
	return string(out)
}
