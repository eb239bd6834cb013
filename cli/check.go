package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"berth/internal/cis"
	"berth/nodeapi"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

func (c *factory) check() *cobra.Command {
	var format string
	var benchmark bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check whether this node can run pods",
		Long: `Check the runtime, the network, cgroups, kernel settings, disks, time and privileges. On a node that has
joined a cluster, also check the API server, its CA and clock, the node's certificates and its name.

If berth is not running, the checks run in this process with the flags of "berth run" and change nothing.
A running agent uses its own configuration.

The exit code is 1 if an essential check fails.

With --cis, check the controls of the ` + cis.Benchmark + `
for a node instead: chapter 4, and the files of the Container Network Interface. Without a running agent and --config,
the settings are those of /etc/berth/config.yaml. The exit code is 1 if a control failed, and 2 if none failed but
controls were not checked. berth-control check --cis checks the other chapters.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "json", "yaml"); err != nil {
				return err
			}
			if benchmark {
				return c.checkCIS(cmd, format)
			}
			r, local, err := c.runCheck(cmd.Context())
			if err != nil {
				return err
			}
			if local {
				if err := noteLocal(cmd, format); err != nil {
					return err
				}
			}
			if format != "" {
				err = encode(cmd.OutOrStdout(), format, r)
			} else {
				err = writeCheck(cmd.OutOrStdout(), c.screen(cmd.OutOrStdout()), r)
			}
			if err == nil && r.Failed() {
				err = &ExitError{Code: 1}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&benchmark, "cis", false, "check the controls of the CIS Kubernetes Benchmark for a node")
	cmd.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml")
	if c.local != nil && c.local.Flags != nil {
		cmd.Flags().AddFlagSet(c.local.Flags)
	}
	return cmd
}

// LocalCheck runs the checks without an agent.
type LocalCheck struct {
	Flags *pflag.FlagSet // flags that configure the checks
	Run   func(ctx context.Context) (nodeapi.CheckReport, error)
	// CIS checks the node against the CIS Kubernetes Benchmark.
	CIS func() (cis.Report, error)
}

// noteLocal writes that no agent is running, to the standard error if the output is for programs.
func noteLocal(cmd *cobra.Command, format string) error {
	to := cmd.OutOrStdout()
	if format != "" {
		to = cmd.ErrOrStderr()
	}
	_, err := fmt.Fprintln(to, "berth is not running: the checks were run locally")
	return err
}

// checkCIS writes the report of the agent about the CIS Kubernetes Benchmark or, if none is running, of the local
// check.
func (c *factory) checkCIS(cmd *cobra.Command, format string) error {
	client, err := c.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	r, err := client.CIS(cmd.Context())
	if c.local != nil && notRunning(err) {
		if r, err = c.local.CIS(); err == nil {
			err = noteLocal(cmd, format)
		}
	}
	switch {
	case err != nil:
		return err
	case format != "":
		err = encode(cmd.OutOrStdout(), format, r)
	default:
		err = r.Write(cmd.OutOrStdout())
	}
	if code := r.ExitCode(); err == nil && code != 0 {
		err = &ExitError{Code: code}
	}
	return err
}

// notRunning reports whether an error means that there is no agent.
func notRunning(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// runCheck returns the report of the agent or, if none is running, of the local checks.
func (c *factory) runCheck(ctx context.Context) (r nodeapi.CheckReport, local bool, err error) {
	client, err := c.dial()
	if err != nil {
		return r, false, err
	}
	defer client.Close()
	r, err = client.Check(ctx)
	if c.local != nil && notRunning(err) {
		r, err = c.local.Run(ctx)
		return r, true, err
	}
	return r, false, err
}

func writeCheck(w io.Writer, s screen, r nodeapi.CheckReport) error {
	width, failed, advice := 0, 0, 0
	for _, it := range r.Items {
		width = max(width, len(clean(it.Name)))
	}
	var b strings.Builder
	for _, it := range r.Items {
		word, color := "ok  ", colorOK
		switch {
		case !it.OK && it.Essential:
			word, color = "FAIL", colorError
			failed++
		case !it.OK:
			word, color = "warn", colorWarning
			advice++
		}
		line := fmt.Sprintf("%s  %-*s  %s", s.paint(color, word), width, clean(it.Name), clean(it.Detail))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		if !it.OK && it.Remedy != "" {
			fmt.Fprintf(&b, "      %-*s  remedy: %s\n", width, "", clean(it.Remedy))
		}
	}
	switch {
	case failed > 0:
		fmt.Fprintf(
			&b,
			"\n%s: %d of %d checks failed\n",
			s.paint(colorError, "pods cannot run on this node"),
			failed,
			len(r.Items),
		)
	case advice > 0:
		fmt.Fprintf(&b, "\npods can run on this node: %d of %d checks returned a warning\n", advice, len(r.Items))
	default:
		fmt.Fprintf(&b, "\npods can run on this node\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
