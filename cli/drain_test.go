package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"berth/nodeapi"
)

// TestDrainTerminatesPodsOnlyDuringSystemShutdown covers stopping the unit for another reason, such
// as an upgrade, which must not terminate pods.
func TestDrainTerminatesPodsOnlyDuringSystemShutdown(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := nodeapi.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	result := nodeapi.DrainResult{Pods: 3, Duration: 2 * time.Second}
	serve(t, ln, nodeapi.Handlers{Drain: func(context.Context) (nodeapi.DrainResult, error) {
		calls++
		return result, nil
	}})
	drain := func(state string) string {
		t.Helper()
		root := &cobra.Command{Use: "berth"}
		root.AddCommand(commands(&factory{
			dial:   func() (*nodeapi.Client, error) { return nodeapi.Dial(path) },
			screen: screenOf, now: time.Now, systemState: func(context.Context) (string, error) { return state, nil },
		})...)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs([]string{"drain-for-shutdown"})
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, state := range []string{"running", "degraded", "starting", "maintenance"} {
		if got := drain(state); got != "system state is "+state+", not stopping: no pods terminated\n" || calls > 0 {
			t.Errorf("got %q after %d calls", got, calls)
		}
	}
	if got := drain("stopping"); got != "3 pods terminated in 2s\n" || calls != 1 {
		t.Errorf("got %q after %d calls", got, calls)
	}
	result.NotTerminated = []string{"default/stuck"}
	if got := drain("stopping"); got != "3 pods terminated in 2s, still running after their grace period: "+
		"default/stuck\n" {
		t.Errorf("%q", got)
	}
	result = nodeapi.DrainResult{SkipReason: "it is not configured"}
	if got := drain("stopping"); got != "no pods terminated: it is not configured\n" {
		t.Errorf("%q", got)
	}
}
