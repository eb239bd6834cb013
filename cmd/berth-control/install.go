package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"berth/control"
	"berth/systemd"
	"berth/systemd/install"
)

const (
	configFile = "/etc/berth-control/config.yaml"
	configDir  = "/etc/berth-control"
	dataDir    = "/var/lib/berth-control"
)

// freshConfig is the configuration file that an installation creates if there is none.
const freshConfig = `# Configuration of berth-control. "berth-control serve --help" lists the fields.
# Apply changes with: systemctl restart berth-control
apiVersion: ` + control.ConfigFileAPIVersion + `
kind: ` + control.ConfigFileKind + `
dataDir: ` + dataDir + `
bindAddress: "::"
securePort: 6443
# tlsSANs: [control.example.com]    # additional names and addresses in the server certificate
# podRanges: [10.42.0.0/16]
# serviceRanges: [10.43.0.0/16]
`

func desiredInstall(from string) install.Spec {
	return install.Spec{
		Name: "berth-control", Source: from, Unit: systemd.ControlUnit, Config: freshConfig, ConfigFile: configFile,
		Layout: install.LocalLayout,
		Dirs:   []install.Dir{{Path: configDir, Mode: 0o755}},
	}
}

func installCommand() *cobra.Command {
	var dryRun, noStart bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or upgrade berth-control on this host",
		Long: `Install this program as a systemd service: copy it to /usr/local/bin, write the unit, create ` +
			configFile + `
if it does not exist, and enable and start the service. Files that are already correct are not touched.
A newer program upgrades an existing installation. If a package installed berth-control, the command
changes nothing: upgrade the package instead.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := os.Executable()
			if err != nil {
				return err
			}
			w := desiredInstall(from)
			if err := install.CheckNotPackaged(w.Name); err != nil {
				return err
			}
			w.NoStart = noStart
			seen, err := install.Inspect(cmd.Context(), w)
			if err != nil {
				return err
			}
			return applySteps(cmd.Context(), cmd.OutOrStdout(), install.Plan(w, seen), dryRun,
				"berth-control is installed")
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the steps that would be executed")
	cmd.Flags().BoolVar(&noStart, "no-start", false, "install the files, but do not enable or start the service")
	return cmd
}

func applySteps(ctx context.Context, out io.Writer, steps []install.Step, dryRun bool, idle string) error {
	if len(steps) == 0 {
		_, err := fmt.Fprintln(out, idle+": nothing to do")
		return err
	}
	if !dryRun {
		return (&install.Executor{Context: ctx, Out: out}).Run(steps)
	}
	return install.PrintSteps(out, steps)
}

func uninstallCommand() *cobra.Command {
	var dryRun, yes, purge bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove berth-control from this host",
		Long: `Remove the service, its configuration and this program. The data directory ` + dataDir + ` contains all
objects and the keys of the cluster. It is kept unless --purge is given. Nodes and their pods are not touched.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := desiredInstall("")
			if err := install.CheckNotPackaged(w.Name); err != nil {
				return err
			}
			seen, err := install.Inspect(cmd.Context(), w)
			if err != nil {
				return err
			}
			l := install.RemovalSpec{Spec: w, Trees: []string{configDir}}
			if purge {
				l.Trees = append(l.Trees, dataDir)
			}
			steps := install.PlanRemoval(l, seen, install.Exists)
			if len(steps) > 0 && !dryRun && !yes {
				if err := install.Confirm(cmd.InOrStdin(), cmd.OutOrStdout(), steps); err != nil {
					return err
				}
			}
			if err := applySteps(cmd.Context(), cmd.OutOrStdout(), steps, dryRun,
				"berth-control is not installed"); err != nil ||
				dryRun ||
				!install.Exists(dataDir) {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "kept: "+dataDir+", the objects and keys of the cluster")
			return err
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the steps that would be executed")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "skip the confirmation prompt")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove "+dataDir+" too: all objects and keys are lost")
	return cmd
}
