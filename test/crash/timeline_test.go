package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTimelineAndEventsSurviveAgentRestart: its timeline and events are there after a
// clean restart and after a kill, with the restart.
func TestTimelineAndEventsSurviveAgentRestart(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("told"))
	n.awaitRunning("told")
	n.waitStoreIdle()
	for _, c := range []struct {
		what, cause string
		end         func()
	}{
		{"killed", "the agent was killed or crashed", n.kill},
		{"stopped", "the agent was stopped and started again", func() { n.must("stop the agent", n.agent.Stop(t.Context())) }},
		{"killed again", "the agent was killed or crashed", n.kill},
	} {
		n.waitStoreIdle()
		c.end()
		n.launch()
		n.awaitRunning("told")
		n.checkOutput([]string{"timeline", "told"}, "start main", "RunPodSandbox", "StartContainer", "restart agent", c.cause)
		events := n.checkOutput([]string{"describe", "told"}, "Events:", "Pulled", "Created", "Started")
		if k := strings.Count(events, "Started container"); k != 1 {
			t.Errorf("after the agent was %s: told %d times that the container started\n%s", c.what, k, events)
		}
		if t.Failed() {
			t.Fatalf("after the agent was %s", c.what)
		}
	}
	n.checkRanOnce("told")
	n.removeManifest("told")
	n.waitNothingLeft()
}

// waitStoreIdle waits until the store is not written to any more: whatever has happened
// is in it.
func (n *node) waitStoreIdle() {
	n.Helper()
	n.waitFor("the store to be written", func() bool {
		st, err := os.Stat(filepath.Join(n.agent.StateDir, "berth.db"))
		return err == nil && time.Since(st.ModTime()) > 1500*time.Millisecond
	})
}

// checkOutput runs a command of berth and wants all those words in its answer.
func (n *node) checkOutput(args []string, words ...string) string {
	n.Helper()
	out, err := n.agent.Command(n.Context(), args...).CombinedOutput()
	n.must(strings.Join(args, " "), err)
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			n.Errorf("berth %s does not say %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
	return string(out)
}
