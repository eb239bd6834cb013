package crash

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheStoryOfAPodOutlivesTheAgent: its timeline and events are there after a
// clean restart and after a kill, with the restart.
func TestTheStoryOfAPodOutlivesTheAgent(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("told"))
	n.awaitRunning("told")
	n.quiet()
	for _, c := range []struct {
		what, cause string
		end         func()
	}{
		{"killed", "the agent was killed or crashed", n.kill},
		{"stopped", "the agent was stopped and started again", func() { n.must("stop the agent", n.agent.Stop(t.Context())) }},
		{"killed again", "the agent was killed or crashed", n.kill},
	} {
		n.quiet()
		c.end()
		n.launch()
		n.awaitRunning("told")
		n.says([]string{"timeline", "told"}, "start main", "RunPodSandbox", "StartContainer", "restart agent", c.cause)
		events := n.says([]string{"describe", "told"}, "Events:", "Pulled", "Created", "Started")
		if k := strings.Count(events, "Started container"); k != 1 {
			t.Errorf("after the agent was %s: told %d times that the container started\n%s", c.what, k, events)
		}
		if t.Failed() {
			t.Fatalf("after the agent was %s", c.what)
		}
	}
	n.once("told")
	n.drop("told")
	n.gone()
}

// quiet waits until the store is not written to any more: whatever has happened
// is in it.
func (n *node) quiet() {
	n.Helper()
	n.until("the store to be written", func() bool {
		st, err := os.Stat(filepath.Join(n.agent.StateDir, "berth.db"))
		return err == nil && time.Since(st.ModTime()) > 1500*time.Millisecond
	})
}

// says runs a command of berth and wants all those words in its answer.
func (n *node) says(args []string, words ...string) string {
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
