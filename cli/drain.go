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
		Short: "End the node's pods because the host goes down; does nothing at any other time",
		Long: `End the node's pods group by group, as shutdownGracePeriod and its kin say, and wait
until they have ended or their time has. For a systemd unit that stops before berth
does, on hosts without logind: where logind is, berth has it wait by itself.

Nothing is done unless systemd says that the system is stopping: to restart, upgrade
or stop berth ends no pod.`,
		Example: `  berth drain-for-shutdown`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := c.system(cmd.Context())
			if err != nil {
				return err
			}
			if state != "stopping" {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "the system is %s, not stopping: no pod is ended\n", clean(state))
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
			text := fmt.Sprintf("%d pods ended in %s", d.Pods, d.Duration.Round(100*time.Millisecond))
			switch {
			case d.SkipReason != "":
				text = "no pod is ended: " + d.SkipReason
			case len(d.NotTerminated) > 0:
				text = fmt.Sprintf("%d pods were told to end in %s, not in time: %s", d.Pods, d.Duration.Round(100*time.Millisecond), strings.Join(d.NotTerminated, ", "))
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), clean(text))
			return err
		},
	}
}

// systemState asks systemd how the system is: running, degraded, stopping, …
func systemState(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "systemctl", "is-system-running").Output()
	state := strings.TrimSpace(string(out))
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || state == "") { // it fails with any state but running
		return "", fmt.Errorf("ask systemd how the system is: %w", err)
	}
	return state, nil
}
