package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *factory) drain() *cobra.Command {
	return &cobra.Command{
		Use:   "drain-for-shutdown",
		Short: "Terminate the node's pods during a system shutdown; does nothing at any other time",
		Long: `Terminate the node's pods in the groups of shutdownGracePeriod and shutdownGracePeriodByPodPriority, and
wait until they have terminated or their grace period is over. This command is for a systemd unit
that stops before berth does, on hosts without logind. With logind, berth delays the shutdown itself.

Nothing is done unless systemd reports that the system is stopping. Restarting, upgrading or stopping
berth does not terminate pods.`,
		Example: `  berth drain-for-shutdown`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := c.systemState(cmd.Context())
			if err != nil {
				return err
			}
			if state != "stopping" {
				_, err := fmt.Fprintf(
					cmd.OutOrStdout(),
					"system state is %s, not stopping: no pods terminated\n",
					clean(state),
				)
				return err
			}
			client, err := c.dial()
			if err != nil {
				return err
			}
			defer client.Close()
			d, err := client.Drain(cmd.Context())
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%d pods terminated in %s", d.Pods, d.Duration.Round(100*time.Millisecond))
			switch {
			case d.SkipReason != "":
				text = "no pods terminated: " + d.SkipReason
			case len(d.NotTerminated) > 0:
				text = fmt.Sprintf(
					"%d pods terminated in %s, still running after their grace period: %s",
					d.Pods,
					d.Duration.Round(100*time.Millisecond),
					strings.Join(d.NotTerminated, ", "),
				)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), clean(text))
			return err
		},
	}
}

// systemState returns the system state of systemd: running, degraded, stopping and so on.
func systemState(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "is-system-running").Output()
	state := strings.TrimSpace(string(out))
	if exit := (*exec.ExitError)(nil); err != nil &&
		(!errors.As(err, &exit) || state == "") { // the exit code is nonzero for every state except running
		return "", fmt.Errorf("get system state from systemd: %w", err)
	}
	return state, nil
}
